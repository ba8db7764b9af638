"""The script that reproduces a failure in plain torch, verified in a clean process.

The failing check is run once more with a :mod:`~attnbench.checking.reproduction.tape`. Everything
that the violated quantity depends on becomes a script, which ends with a failing assertion. If a
violation has its own lines (:mod:`~attnbench.checking.reproduction.untaped`), these are the script.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from attnbench.cases.case import Case
from attnbench.checking.cause.likely_cause import with_cause
from attnbench.checking.cause.witnesses import explanations
from attnbench.checking.outcomes import Outcome
from attnbench.checking.reproduction.source_lines import Step, Unwritable
from attnbench.checking.reproduction.subject_source import (
    Named,
    named_cache,
    named_reference,
)
from attnbench.checking.reproduction.tape import Tape
from attnbench.checking.reproduction.taped_subject import calls_taped, taped
from attnbench.checking.runner import seeded
from attnbench.errors import InvariantViolation
from attnbench.specs import Invariant, KernelSpec, LayerSpec
from attnbench.subject.subject import Subject

_TIME_LIMIT_S = 60
_TRIES = 3  # most failures of a subject for which a script is tried
_TOLD_BYTES = 2**16  # read from the end of a script's output, whose last line names the exception
_LONGEST = 200  # lines; a longer script is less helpful than the message


def with_evidence(
    outcomes: Iterable[Outcome], subject: Subject, invariants: Iterable[Invariant]
) -> Iterator[Outcome]:
    """Pass on outcomes as they come, and add evidence to some failures.

    The first failure for which it is possible gets a script that reproduces it, and so does a later
    one that shows the likely cause better. One of the first gets the mistakes that explain the
    wrong outputs.
    """
    known = {invariant.name: invariant for invariant in invariants}
    tries = looks = _TRIES
    written = False
    seen: list[str] = []
    so_far: list[Outcome] = []
    for outcome in outcomes:
        failure = outcome.failure
        if failure is not None and looks > 0:
            looks -= 1
            seen.append(failure.case or "")
            with seeded():
                found = explanations(subject, seen)
            if found:
                looks, failure = 0, replace(failure, mistakes=found)
                outcome = replace(outcome, failure=failure)
        so_far.append(outcome)
        if failure is not None and failure.case and tries > 0 and (not written or _leads(so_far)):
            tries -= 1
            with seeded():
                script = reproduce(subject, known[outcome.invariant], Case.from_id(failure.case))
            if script is not None:
                written = True
                outcome = replace(outcome, failure=replace(failure, script=script))
        yield outcome


def _leads(outcomes: Sequence[Outcome]) -> bool:
    """Whether the last outcome is the one that shows the likely cause of the failures best."""
    return with_cause(outcomes)[-1].diagnosis is not None


def reproduce(subject: Subject, invariant: Invariant, case: Case) -> str | None:
    """Write a script that reproduces the failure of an invariant at a case, and verify it.

    Returns:
        Source text that imports torch and the subject's own code and ends with a failing assertion;
        ``None`` if there is no such script.
    """
    try:
        script, expected = _script(subject, invariant, case)
    except Unwritable:
        return None
    if script.count("\n") > _LONGEST or not _fails(script, expected):
        return None
    return script


def _script(subject: Subject, invariant: Invariant, case: Case) -> tuple[str, str]:
    """The script, and the name of the exception that it ends with."""
    tape = Tape()
    on_tape, named = taped(subject, tape)
    title = f"{invariant.name} on {subject.name}, case {case.id}"
    try:
        invariant.check(subject, case)
    except InvariantViolation as error:
        if error.compared is not None and "lines" in error.compared:
            end = [*_definitions(subject, named, error.compared["lines"]), *error.compared["lines"]]
            return _rendered(title, str(error), named, [], end, tape), "AssertionError"
    except Exception:  # noqa: S110 -- it is met again on the tape
        pass
    try:
        with calls_taped(tape), tape:
            invariant.check(on_tape, case)
    except Exception as error:
        raised = error
    else:
        raise Unwritable("it does not fail when it is run again")
    message = str(raised)
    if not isinstance(raised, InvariantViolation):
        message = f"raised {type(raised).__name__}: {raised}"
    if isinstance(raised, InvariantViolation) and raised.compared is not None:
        wanted, end = _ending(tape, raised)
        expected = "AssertionError"
    elif tape.has_raised:
        wanted, end, expected = {tape.raised}, [], tape.raised_name
    elif tape.last is not None:
        wanted, end, expected = *_shape_and_dtype(subject, tape), "AssertionError"
    else:
        raise Unwritable("nothing was compared")
    steps = tape.needed(wanted)
    for step in steps:
        if step.problem:
            raise Unwritable(step.problem)
    return _rendered(title, message, named, steps, end, tape), expected


_CACHE_CALLS = {
    "new": " new(",
    "select": "(select, ",
    "crop": "(crop, ",
    "length": " length(",
}
"""The calls of the operations of a cache in a script."""


def _definitions(subject: Subject, named: list[Named], lines: Sequence[str]) -> list[str]:
    """Definitions of the names that own lines may use: ``make``, ``attend`` and ``reference``."""
    options = "".join(f", {name}={value!r}" for name, value in subject.options.items())
    texts = {"make": f"lambda *sizes: {named[0].text}(*sizes{options})"}
    if isinstance(subject.spec, KernelSpec):
        texts["attend"] = named[1].text
    if any("reference(" in line for line in lines):
        named.append(named_reference(subject.maker))
        texts["reference"] = named[-1].text
    if isinstance(subject.spec, LayerSpec) and subject.spec.cache is not None:
        for name, call in _CACHE_CALLS.items():
            if any(call in line for line in lines):
                named.append(named_cache(subject.spec, name))
                texts[name] = named[-1].text
    return [f"{name} = {text}" for name, text in texts.items() if name != text]


def _ending(tape: Tape, violation: InvariantViolation) -> tuple[set[int], list[str]]:
    """The variables and lines of the comparison, at the element where it failed."""
    reads: set[int] = set()
    compared = violation.compared or {}
    place = ", ".join(map(str, violation.place))
    at = f"[{place}]" if place else ""
    shown = f"{violation.quantity}{at} ="
    if "condition" in compared:
        condition = tape.source(compared["condition"], reads)
        value = tape.source(compared["values"], reads)
        lines = [
            f"value = {value}{at}.item()",
            f"print({shown!r}, value)",
            f"assert {condition}{at}, {f'but should be {violation.expected}'!r}",
        ]
        return reads, lines
    got, wanted = (tape.source(compared[name], reads) for name in ("got", "expected"))
    lines = [
        f"got, expected = {got}{at}.item(), {wanted}{at}.item()",
        f'print({shown!r}, got, "but should be", expected)',
        f"assert got == expected or abs(got - expected) <= {violation.allowed or 0.0:.6g}",
    ]
    return reads, lines


def _shape_and_dtype(subject: Subject, tape: Tape) -> tuple[set[int], list[str]]:
    """The variables and lines that compare the last result with its expected shape and dtype."""
    assert tape.last is not None
    inputs, result = tape.last
    given = [tensor for tensor in inputs if tensor.is_floating_point()]
    if len(given) < {"scoring": 2, "layer": 1}.get(subject.kind, 3):
        raise Unwritable("the last call was not one of the subject's")
    first, dtypes = given[0], {given[0].dtype}
    if subject.kind == "scoring":
        shape, dtypes = (*first.shape[:-1], given[1].shape[-2]), {*dtypes, torch.float32}
    elif subject.kind == "layer":
        shape = tuple(first.shape)
    else:
        shape = (*first.shape[:-1], given[2].shape[-1])
    reads: set[int] = set()
    text = tape.source(result[0] if isinstance(result, tuple) else result, reads)
    allowed = ", ".join(sorted(map(str, dtypes)))
    return reads, [
        f'print("shape", tuple({text}.shape), "and dtype", {text}.dtype)',
        f'assert tuple({text}.shape) == {shape}, "the shape should be {shape}"',
        f'assert {text}.dtype in ({allowed},), "the dtype should be {allowed}"',
    ]


def _rendered(
    title: str, message: str, named: list[Named], steps: list[Step], end: list[str], tape: Tape
) -> str:
    numbers = [int(n) for step in steps for n in re.findall(r"‹(\d+)›", step.text)]
    names = {n: f"t{i}" for i, n in enumerate(dict.fromkeys(numbers), 1)}
    names |= {n: name for n, name in tape.names.items() if n in names}
    lines, grad = [], True
    for step in steps:
        if step.grad != grad:
            grad = step.grad
            lines.append(f"torch.set_grad_enabled({grad})")
        lines.append(step.text)
    body = "\n".join([*lines, *end])
    body = re.sub(r"‹(\d+)›", lambda match: names.get(int(match[1]), "_"), body)
    imports = list(dict.fromkeys(line for n in named for line in n.imports if line.strip()))
    plain = [line for line in imports if line.startswith(("import ", "from torch", "sys."))]
    rest = [line for line in imports if line not in plain]
    copying = ["import copy"] if "copy.deepcopy" in body else []
    head = textwrap.indent(f"{title}:\n{message}", "# ").rstrip()
    head = "\n".join(line.rstrip() for line in head.splitlines())
    return "\n".join([head, *copying, "import torch", *plain, *rest, "", body, ""])


def _fails(script: str, expected: str) -> bool:
    """Run a script in a clean process; whether it ends with an exception of this name."""
    with tempfile.TemporaryDirectory() as folder:
        path, said = Path(folder) / "reproduce.py", Path(folder) / "stderr"
        path.write_text(script, encoding="utf-8")
        try:
            with said.open("wb") as stderr:  # a pipe would keep in memory whatever it prints
                done = subprocess.run(  # noqa: S603 -- our own script, by our own interpreter
                    [sys.executable, str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    timeout=_TIME_LIMIT_S,
                    cwd=folder,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return False
        with said.open("rb") as stderr:
            stderr.seek(max(0, said.stat().st_size - _TOLD_BYTES))
            lines = stderr.read().decode(errors="replace").strip().splitlines()
    name = (lines or [""])[-1].partition(":")[0].rpartition(".")[2]
    return done.returncode == 1 and name == expected
