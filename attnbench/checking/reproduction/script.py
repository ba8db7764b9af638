"""The script that reproduces a failure in plain torch, verified in a clean process.

The failing check is run once more with a :mod:`~attnbench.checking.reproduction.tape`. Everything
that the violated quantity depends on becomes a script, which ends with a failing assertion. If a
violation has its own lines (:mod:`~attnbench.checking.reproduction.untaped`), these are the script.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

import torch

from attnbench.cases.case import Case
from attnbench.checking.reproduction.source_lines import Step, Unwritable
from attnbench.checking.reproduction.subject_source import Source, source_of
from attnbench.checking.reproduction.tape import Tape
from attnbench.checking.reproduction.taped_subject import record_calls, tape_subject
from attnbench.errors import InvariantViolation
from attnbench.specs import Invariant, KernelSpec, LayerSpec
from attnbench.subject.subject import Subject

_TIME_LIMIT_S = 60
_LOG_BYTES = 2**16  # read from the end of a script's output, whose last line names the exception
_RUNNING = "ATTNBENCH_REPRODUCING"  # set where a script runs: a file that checks itself writes none
_MOST_LINES = 200  # lines; a longer script is less helpful than the message


def reproduce(subject: Subject, invariant: Invariant, case: Case) -> str | None:
    """Write a script that reproduces the failure of an invariant at a case, and verify it.

    Returns:
        Source text that imports torch and the subject's own code and ends with a failing assertion;
        ``None`` if there is no such script, and within one: a file may check its code whenever it
        is imported.
    """
    if _RUNNING in os.environ:
        return None
    try:
        script, expected = _script(subject, invariant, case)
    except Unwritable:
        return None
    if script.count("\n") > _MOST_LINES or not _fails(script, expected):
        return None
    return script


def _script(subject: Subject, invariant: Invariant, case: Case) -> tuple[str, str]:
    """The script, and the name of the exception that it ends with."""
    tape = Tape()
    taped_subject, parts = tape_subject(subject, tape)
    title = f"{invariant.name} on {subject.name}, case {case.id}"
    try:
        invariant.check(subject, case)
    except InvariantViolation as error:
        if error.compared is not None and "lines" in error.compared:
            lines = error.compared["lines"]
            ending = [*_definitions(subject, parts, lines), *lines]
            return _text(title, str(error), parts, [], ending, tape), "AssertionError"
    except Exception:  # noqa: S110 -- the run on the tape raises it again
        pass
    try:
        with record_calls(tape), tape:
            invariant.check(taped_subject, case)
    except Exception as error:
        failure = error
    else:
        raise Unwritable("it does not fail when it is run again")
    message = str(failure)
    if not isinstance(failure, InvariantViolation):
        message = f"raised {type(failure).__name__}: {failure}"
    if isinstance(failure, InvariantViolation) and failure.compared is not None:
        variables, ending = _ending(tape, failure)
        expected = "AssertionError"
    elif tape.has_raised:
        variables, ending, expected = {tape.failed_call}, [], tape.raised_name
    elif tape.last_call is not None:
        variables, ending, expected = *_shape_and_dtype(subject, tape), "AssertionError"
    else:
        raise Unwritable("nothing was compared")
    steps = tape.steps_for(variables)
    for step in steps:
        if step.problem:
            raise Unwritable(step.problem)
    return _text(title, message, parts, steps, ending, tape), expected


_CACHE_CALLS = {
    "new": " new(",
    "select": "(select, ",
    "crop": "(crop, ",
    "length": " length(",
}
"""The calls of the operations of a cache in a script."""


def _definitions(subject: Subject, parts: list[Source], lines: Sequence[str]) -> list[str]:
    """Definitions of the names that an invariant's lines use, such as ``make`` or ``attend``."""
    options = "".join(f", {name}={value!r}" for name, value in subject.options.items())
    texts = {"make": f"lambda *sizes: {parts[0].text}(*sizes{options})"}
    if isinstance(subject.spec, KernelSpec):
        texts["attend"] = parts[1].text
    if any("reference(" in line for line in lines):
        parts.append(source_of(subject.maker, "reference"))
        texts["reference"] = parts[-1].text
    if isinstance(subject.spec, LayerSpec) and subject.spec.cache is not None:
        for name, call in _CACHE_CALLS.items():
            if any(call in line for line in lines):
                parts.append(source_of(subject.spec, f"cache.{name}"))
                texts[name] = parts[-1].text
    return [f"{name} = {text}" for name, text in texts.items() if name != text]


def _ending(tape: Tape, violation: InvariantViolation) -> tuple[set[int], list[str]]:
    """The variables and lines of the comparison, at the element where it failed."""
    reads: set[int] = set()
    compared = violation.compared or {}
    place = ", ".join(map(str, violation.place))
    index = f"[{place}]" if place else ""
    label = f"{violation.quantity}{index} ="
    if "condition" in compared:
        condition = tape.source(compared["condition"], reads)
        value = tape.source(compared["values"], reads)
        lines = [
            f"got = {value}{index}.item()",
            f"print({label!r}, got)",
            f"assert {condition}{index}, {f'but should be {violation.expected}'!r}",
        ]
        return reads, lines
    if "lines" in compared:
        raise Unwritable("it fails only while its calls are recorded")
    got, expected = (tape.source(compared[name], reads) for name in ("got", "expected"))
    lines = [
        f"got, expected = {got}{index}.item(), {expected}{index}.item()",
        f'print({label!r}, got, "but should be", expected)',
        f"assert got == expected or abs(got - expected) <= {violation.allowed or 0.0:.6g}",
    ]
    return reads, lines


def _shape_and_dtype(subject: Subject, tape: Tape) -> tuple[set[int], list[str]]:
    """The variables and lines that compare the last result with its expected shape and dtype."""
    assert tape.last_call is not None
    inputs, result = tape.last_call
    tensors = [tensor for tensor in inputs if tensor.is_floating_point()]
    if len(tensors) < {"scoring": 2, "layer": 1}.get(subject.kind, 3):
        raise Unwritable("the last call was not one of the subject's")
    query, dtypes = tensors[0], {tensors[0].dtype}
    if subject.kind == "scoring":
        shape, dtypes = (*query.shape[:-1], tensors[1].shape[-2]), {*dtypes, torch.float32}
    elif subject.kind == "layer":
        shape = tuple(query.shape)
    else:
        shape = (*query.shape[:-1], tensors[2].shape[-1])
    reads: set[int] = set()
    text = tape.source(result[0] if isinstance(result, tuple) else result, reads)
    allowed = ", ".join(sorted(map(str, dtypes)))
    return reads, [
        f'print("shape", tuple({text}.shape), "and dtype", {text}.dtype)',
        f'assert tuple({text}.shape) == {shape}, "the shape should be {shape}"',
        f'assert {text}.dtype in ({allowed},), "the dtype should be {allowed}"',
    ]


def _text(
    title: str, message: str, parts: list[Source], steps: list[Step], ending: list[str], tape: Tape
) -> str:
    numbers = [int(number) for step in steps for number in re.findall(r"‹(\d+)›", step.text)]
    names = {number: f"t{i}" for i, number in enumerate(dict.fromkeys(numbers), 1)}
    names |= {number: name for number, name in tape.names.items() if number in names}
    lines, grad = [], True
    for step in steps:
        if step.grad != grad:
            grad = step.grad
            lines.append(f"torch.set_grad_enabled({grad})")
        lines.append(step.text)
    body = "\n".join([*lines, *ending])
    body = re.sub(r"‹(\d+)›", lambda match: names.get(int(match[1]), "_"), body)
    imports = list(dict.fromkeys(line for part in parts for line in part.imports if line.strip()))
    top = [line for line in imports if line.startswith(("import ", "from torch", "sys."))]
    others = [line for line in imports if line not in top]
    copying = ["import copy"] if "copy.deepcopy" in body else []
    head = textwrap.indent(f"{title}:\n{message}", "# ").rstrip()
    head = "\n".join(line.rstrip() for line in head.splitlines())
    return "\n".join([head, *copying, "import torch", *top, *others, "", body, ""])


def _fails(script: str, expected: str) -> bool:
    """Run a script in a clean process, and say whether it ends with this exception."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "reproduce.py", Path(folder) / "stderr"
        path.write_text(script, encoding="utf-8")
        try:
            with log.open("wb") as stderr:  # a pipe would keep in memory whatever it prints
                process = subprocess.run(  # noqa: S603 -- our own script, by our own interpreter
                    [sys.executable, str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    timeout=_TIME_LIMIT_S,
                    cwd=folder,
                    env={**os.environ, _RUNNING: "1"},
                    check=False,
                )
        except subprocess.TimeoutExpired:
            return False
        with log.open("rb") as stderr:
            stderr.seek(max(0, log.stat().st_size - _LOG_BYTES))
            lines = stderr.read().decode(errors="replace").strip().splitlines()
    name = (lines or [""])[-1].partition(":")[0].rpartition(".")[2]
    return process.returncode == 1 and name == expected
