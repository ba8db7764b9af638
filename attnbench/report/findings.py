"""The failures of a report, their lines of code, and what renders them."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.checking.check_report import CheckReport
from attnbench.checking.outcomes import Outcome
from attnbench.checking.parallel import Work
from attnbench.errors import AttnbenchError, PluginError
from attnbench.processes.pool import Task, call
from attnbench.processes.tracebacks import is_own_code
from attnbench.registry.address import Address
from attnbench.registry.catalog import BUILT_IN, registry
from attnbench.specs import Format, KernelSpec

_ROOTS = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
"""Variables that hold the folder of the repository, to which paths in annotations are relative."""
_CODE_LINE = "attnbench.report.findings:code_line_of"
_TIMEOUT_S = 60.0


@dataclass(frozen=True, order=True)
class Place:
    """A line of a file."""

    file: str
    line: int


@dataclass(frozen=True)
class Findings:
    """The report that a format renders, with the lines of code of its subjects."""

    report: CheckReport
    statements: Mapping[str, str]
    places: Mapping[str, Place] = field(default_factory=dict)

    def place_of(self, outcome: Outcome) -> Place | None:
        """The line at which the subject raised the failure, or else the line of its code."""
        raised = outcome.failure.source_line if outcome.failure else None
        if raised:
            file, _, line = raised.rpartition(":")
            if Path(file).exists():
                return place_at(file, int(line))
        return self.places.get(outcome.subject)


def findings_of(
    report: CheckReport, statements: Mapping[str, str], works: Sequence[Work], *, located: bool
) -> Findings:
    """The findings of a report.

    Args:
        report: the report.
        statements: statements of the invariants by name.
        works: the works that ran, which hold the addresses of the subjects.
        located: whether to find the subjects' code, which makes each in a child process.
    """
    places = {}
    failing = {outcome.subject for outcome in report.failures}
    for target, label in {(work.target, work.label) for work in works if located}:
        if label in failing:
            task = Task(label, _CODE_LINE, {"target": target}, _TIMEOUT_S)
            with contextlib.suppress(AttnbenchError):  # it may hang or die as in its check
                if (line := call(task)) is not None:
                    places[label] = place_at(*line)
    return Findings(report, statements, places)


def place_at(file: str, line: int) -> Place:
    """A line of a file, whose path is made relative to the repository."""
    root = next((os.environ[name] for name in _ROOTS if os.environ.get(name)), ".")
    path, folder = Path(file).resolve(), Path(root).resolve()
    shown = path.relative_to(folder) if path.is_relative_to(folder) else path
    return Place(shown.as_posix(), line)


def code_line_of(target: Address) -> tuple[str, int] | None:
    """File and line of the code of the subject of an address."""
    from attnbench.subject.lookup import resolve

    (subject,) = resolve(target)
    return code_line(subject)


def code_line(subject: Any) -> tuple[str, int] | None:
    """File and line where the user's code that computes a subject's answer is defined.

    That is the kernel, the function or class that an adapter calls, the class of the module that
    ``make`` returns or of one within it, or else ``make``; ``None`` if no source of any is at hand.
    """
    for part in _code_parts(subject):
        part = inspect.unwrap(getattr(part, "func", part))  # of a partial
        part = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
        if inspect.isclass(part) and "forward" in vars(part):
            part = inspect.unwrap(vars(part)["forward"])
        with contextlib.suppress(TypeError, OSError):
            file = str(inspect.getsourcefile(part))
            if is_own_code(file):
                return file, inspect.getsourcelines(part)[1]
    return None


def _code_parts(subject: Any) -> Iterator[Any]:
    if isinstance(subject.spec, KernelSpec):
        yield subject.spec.attend
        return
    make = inspect.unwrap(subject.maker.make)
    for holder in (subject.spec, make):
        yield getattr(holder, "callee", None)
    with contextlib.suppress(Exception):  # what is wrong with it, its check has told
        yield from dict.fromkeys(type(part) for part in subject.make(4, 4, 4).modules())
    yield make


def format_rows() -> dict[str, bool]:
    """The formats by name, and whether each asks for places of failures; built-in ones win."""
    plugins = sorted(registry().plugins, key=lambda plugin: plugin.distribution == BUILT_IN)
    specs = (spec for plugin in plugins for spec in plugin.specs if isinstance(spec, Format))
    return {spec.name: spec.located for spec in specs}


def rendered(name: str, findings: Any) -> str:
    """The text of a report in a format.

    Raises:
        PluginError: the format gives something else.
    """
    text = registry().one_of(Format, name).render(findings)
    if not isinstance(text, str):
        raise PluginError(f"it gave {type(text).__name__}, but a format gives text")
    return text
