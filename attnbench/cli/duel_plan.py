"""Parts of ``attnbench compare``: classify its arguments, and plan a duel."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.comparing.checkouts import Repository, branches, commit_of, repository
from attnbench.benchmark.comparing.duel import Duel, Row
from attnbench.benchmark.comparing.exchange import Exchange, Side, quiet_core
from attnbench.benchmark.records import run_path
from attnbench.cli.configuration import check_defaults
from attnbench.cli.plugin_loading import ask, warm_up_children
from attnbench.cli.printing.tables import progress
from attnbench.errors import AttnbenchError, UnknownNameError, UsageError, similar
from attnbench.processes.pool import Task, call
from attnbench.registry.address import parse_address


@dataclass(frozen=True)
class Request:
    """The classified arguments of ``compare``."""

    revisions: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()


def classify(arguments: Sequence[str], results: Path) -> Request:
    """Classify the arguments as revisions and subjects.

    Raises:
        UsageError: an argument is a recorded run, or they cannot be combined.
        UnknownNameError: an argument is none of these.
    """
    revisions, subjects = [], []
    subject_names: list[str] | None = None
    for text in arguments:
        if ":" in text or "(" in text:
            subjects.append(text)
            continue
        if subject_names is None:
            subject_names = _names()
        is_revision = commit_of(Path.cwd(), text) is not None
        if text in subject_names:
            subjects.append(text)
        elif run_path(results, text).exists() or Path(text).exists():
            raise UsageError(_of_run(text, is_revision=is_revision))
        elif is_revision:
            revisions.append(text)
        else:
            names = [*branches(Path.cwd()), *subject_names]
            raise UnknownNameError(
                f"{text!r} is not a revision of this repository, or a subject. "
                f"{similar(text, names)}".rstrip()
            )
    if revisions and not subjects:
        subjects = check_defaults().get("targets", [])
    return _checked(Request(tuple(revisions), tuple(subjects)))


def _of_run(text: str, *, is_revision: bool) -> str:
    """Why a recorded run is not compared."""
    if is_revision:
        return (
            f"{text!r} is both a recorded run and a revision. Name the revision by its hash, or a "
            "subject by its file, path/to/file.py:ATTRIBUTE."
        )
    return (
        f"{text!r} is a file or a recorded run, and no revision or subject. Recorded runs are not "
        "compared: 'attnbench compare REVISION' measures both sides itself, in turn, and "
        "'attnbench report' shows runs side by side."
    )


def _checked(request: Request) -> Request:
    if len(request.revisions) > 2:
        raise UsageError(f"at most two revisions can be named; got {', '.join(request.revisions)}.")
    if not request.revisions and len(request.subjects) != 2:
        raise UsageError(
            f"got {', '.join(request.subjects) or 'nothing'}: name one or two revisions and the "
            "subjects to compare at them, or two subjects."
        )
    return request


def _names() -> list[str]:
    try:
        warm_up_children()
        return [row["subject"] for row in ask("subject_rows", targets=None)]
    except AttnbenchError:
        return []  # a plugin of the working tree may be broken


@dataclass
class Plan:
    """A duel that is ready to run."""

    a: str
    b: str
    duel: Duel
    notes: list[str] = field(default_factory=list)

    def run(self, title: str) -> bool:
        """Run the duel with a progress bar; returns whether Ctrl-C ended it early."""
        duel = self.duel
        try:
            with progress(len(duel.rows) * max(duel.looks), title) as advance:
                for rows in duel.run():
                    advance(rows, f"pair {duel.pairs}")
        except KeyboardInterrupt:
            return True
        return False


@contextlib.contextmanager
def duel(
    request: Request,
    cases: Sequence[BenchCase],
    *,
    threads: int = 1,
    timeout_s: float = 120.0,
    **options: Any,
) -> Iterator[Plan]:
    """Set up both sides of a duel, and always clean up at the end.

    Raises:
        UsageError: a side cannot be built, or there is nothing to compare.
    """
    core = quiet_core()
    notes = []
    if core is None:
        notes.append("Both sides ran on any core: this system does not let a process choose one.")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="attnbench-inputs-"))
        arguments = {"cases": cases, "folder": folder}
        inputs = call(Task("inputs", "attnbench.benchmark.workloads:write_inputs", arguments))
        sides = _sides(request, stack)
        exchange = Exchange(sides, core if threads == 1 else None, threads, timeout_s=timeout_s)
        stack.enter_context(exchange)
        pairs = _subjects(request, exchange, notes)
        rows = [
            Row(
                a if a == b else f"{b} against {a}",
                case,
                (_order(a, sides[0], case, path), _order(b, sides[1], case, path)),
            )
            for a, b in pairs
            for case, path in zip(cases, inputs, strict=True)
        ]
        a, b = [side.name for side in sides] if request.revisions else request.subjects
        yield Plan(a, b, Duel(exchange, rows, **options), notes)


def _sides(request: Request, stack: contextlib.ExitStack) -> tuple[Side, Side]:
    folder = Path.cwd()
    if not request.revisions:
        return Side(request.subjects[0], folder), Side(request.subjects[1], folder)
    source: Repository = repository(Path.cwd())
    build = not request.subjects or any(
        not parse_address(text).is_file for text in request.subjects
    )
    revisions = [*request.revisions, None][:2]
    a, b = (stack.enter_context(source.side(revision, build=build)) for revision in revisions)
    return a, b


def _subjects(request: Request, exchange: Exchange, notes: list[str]) -> list[tuple[str, str]]:
    """The subjects to compare, as the address on each side."""
    if not request.revisions:
        return [(request.subjects[0], request.subjects[1])]
    if request.subjects:
        return [(text, text) for text in _expand(request.subjects, exchange, notes)]
    a, b = exchange.names()
    common = [name for name in b if name in a]
    for side, names, others in zip(exchange.sides, (a, b), (b, a), strict=True):
        extras = [name for name in names if name not in others]
        if extras:
            notes.append(f"Only {side.name} has {', '.join(extras)}.")
    if not common:
        raise UsageError(
            "the two sides have no subject in common whose code is in this repository: "
            f"{exchange.sides[0].name} has {', '.join(a) or 'none'}, {exchange.sides[1].name} has "
            f"{', '.join(b) or 'none'}. Name one, such as path/to/file.py:ATTRIBUTE."
        )
    return [(name, name) for name in common]


def _expand(subjects: Sequence[str], exchange: Exchange, notes: list[str]) -> list[str]:
    """Expand addresses so that each names one subject: a file's attribute may have several."""
    names = []
    for text in subjects:
        shared_names, fault = exchange.expanded(text)
        names += shared_names
        notes += [fault] if fault else []
    return names


def _order(text: str, side: Side, case: BenchCase, inputs: str) -> Mapping[str, Any]:
    return {
        "address": text,
        "folder": str(side.folder),
        "inputs": inputs,
        "seed": case.case.seed,
        "device": case.case.device,
        "direction": case.direction,
    }
