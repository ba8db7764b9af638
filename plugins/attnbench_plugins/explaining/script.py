"""The script that reproduces a failure in plain torch, verified in a clean process.

It makes the module, writes the tensors of the failing calls as numbers, makes these calls again,
and ends with the failing assertion. What compares anything but outputs, as gradients, or what is
compiled, has none: ``attnbench check --case ID`` runs it again.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator, Sequence, Set
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Subject
from attnbench.errors import InvariantViolation
from attnbench.testing import CACHE_CALLS, Comparison, Row, SubjectCall, row_of
from attnbench_plugins.explaining.subject_source import Source, Unwritable, source_of

_TIME_LIMIT_S = 60
_RUNNING = "ATTNBENCH_REPRODUCING"  # set where a script runs: a file that checks itself writes none
_MOST_LINES = 200  # lines; a longer script is less helpful than the message
_MOST_NUMBERS = 600  # of a tensor
_MOST_CALLS = 40

_DIGITS = {torch.float16: 5, torch.bfloat16: 4, torch.float32: 9, torch.float64: 17}

_ROLES = {
    "module": ("query", "key", "value"),
    "attend": ("module", "query", "key", "value"),
}
"""What the first arguments of a call are."""


def script_of(subject: Subject, failure: Any, comparison: Comparison) -> str | None:
    """Write a script that makes the failing calls again, and verify that it fails.

    Args:
        subject: the subject that failed.
        failure: what it failed in, with a case.
        comparison: what was compared.

    Returns:
        Source text that imports torch and the subject's own code and ends with a failing assertion;
        ``None`` if there is no such script, and within one: a file may check its code whenever it
        is imported.
    """
    if _RUNNING in os.environ:
        return None
    case = Case.from_id(failure.case)
    title = f"{failure.invariant} on {subject.name}, case {failure.case}"
    for whole in (False, True):  # a module may keep what an earlier call left
        with contextlib.suppress(Unwritable):
            script, expected = _Script(subject, case).text(title, comparison, whole=whole)
            if script.count("\n") <= _MOST_LINES and _fails(script, expected):
                return script
    return None


class _Script:
    """The lines of a script, and the names of what they make."""

    def __init__(self, subject: Subject, case: Case) -> None:
        self.subject, self.case = subject, case
        self.parts: list[Source] = []
        self.lines: list[str] = []
        self._names: dict[int, str] = {}  # of objects by id, which the recorded calls keep alive
        self._outputs: dict[int, str] = {}  # by the number of the call
        self._literals: list[tuple[Tensor, str]] = []
        self._taken: dict[str, int] = {}

    def text(self, title: str, comparison: Comparison, *, whole: bool) -> tuple[str, str]:
        """The script, and the name of the exception that it ends with.

        Args:
            title, comparison: as of :func:`script_of`.
            whole: whether to make all calls of the check, not only those with the same cache.

        Raises:
            Unwritable: there is none.
        """
        violation = comparison.violation
        cause = violation.__cause__ if isinstance(violation, InvariantViolation) else violation
        failed = [call for call in comparison.calls if call.error is cause is not None]
        if failed:
            self._write_calls(failed[:1])
            name = type(cause).__name__
            return self._whole(title, f"raised {name}"), name
        if not isinstance(violation, InvariantViolation):
            raise Unwritable("no call of the subject raised")
        rows = [row_of(each, comparison) for each in (comparison.got, comparison.expected)]
        if rows[0] is None:
            raise Unwritable("what is compared is no output")
        wanted = {row.call.number for row in rows if row}
        self._write_calls(comparison.calls if whole else _needed(comparison.calls, wanted))
        got, expected = (row and self._element(row, comparison.at) for row in rows)
        if expected is None:
            expected = repr(violation.expected)
            if not isinstance(violation.expected, float):
                raise Unwritable("no number is expected")
        self.lines += [
            f"got, expected = {got}, {expected}",
            f'print("{violation.quantity} =", got, "but should be", expected)',
            f"assert abs(got - expected) <= {violation.allowed or 0.0:.6g}",
        ]
        return self._whole(title, str(violation)), "AssertionError"

    def _element(self, row: Row, at: Sequence[int]) -> str:
        place = ", ".join(map(str, (*row.place, at[-1])))
        part = "" if isinstance(row.call.result, Tensor) else f"[{row.which}]"
        return f"{self._outputs[row.call.number]}{part}[{place}].item()"

    def _write_calls(self, calls: Sequence[SubjectCall]) -> None:
        if len(calls) > _MOST_CALLS:
            raise Unwritable("too many calls")
        if not any(call.grad for call in calls):
            self.lines.append("torch.set_grad_enabled(False)")
        for call in calls:
            function = self._function(call)
            roles = ("hidden",) if self.subject.kind == "layer" else _ROLES.get(call.name, ())
            hints = [*roles, *["given"] * len(call.args)]
            triples = zip(call.args, call.given[0], hints, strict=False)
            args = [self._value(*triple) for triple in triples]
            given = call.given[1]
            args += [
                f"{n}={self._value(v, given[n], n)}"
                for n, v in call.kwargs.items()
                if v is not None and v is not False
            ]
            name = self._name("cache" if call.name in CACHE_CALLS else "output")
            self._outputs[call.number] = name
            self.lines.append(f"{name} = {function}({', '.join(args)})")
            self._note(call.result, name)

    def _function(self, call: SubjectCall) -> str:
        """The name of what is called, behind the lines that make it."""
        if call.name in CACHE_CALLS:
            return self._import(self.subject.spec, f"cache.{call.name}")
        if call.name == "attend" and self.subject.kind == "scoring":
            self.parts.append(Source(("import attnbench",), ""))
            return "attnbench.attend"
        if call.name == "attend":
            return self._import(self.subject.spec, "attend")
        if id(call.function) not in self._names:
            self._make(call.function, call.parameters)
        return self._names[id(call.function)]

    def _import(self, spec: Any, field: str) -> str:
        source = source_of(spec, field)
        self.parts.append(source)
        return source.text

    def _make(self, module: Any, parameters: dict[str, Tensor]) -> None:
        """Write the lines that make a module with the parameters that it had."""
        name, make = self._name("module"), self._import(self.subject.maker, "make")
        sizes = (self.case.query_size, self.case.key_size, self.case.value_size)
        given = [*map(str, sizes[: self.subject.size_count])]
        given += [f"{key}={value!r}" for key, value in self.subject.options.items()]
        self._names[id(module)] = name
        self.lines.append(f"torch.manual_seed({self.case.seed})")
        self.lines.append(f"{name} = {make}({', '.join(given)})")
        changed = self.subject.constant_parameters
        if changed:
            sines = "torch.arange(1.0, p.numel() + 1).sin().view(p.shape)"
            self.lines.append(f"for p in map({name}.get_parameter, {changed}):")
            self.lines.append(f"    p.data += {sines} / 4")
        dtypes = [p.dtype for p in parameters.values() if p.is_floating_point()]
        moved = f".to({dtypes[0]})" if dtypes and dtypes[0] != torch.float32 else ""
        mode = "" if getattr(module, "training", False) else ".eval()"
        if moved + mode:
            self.lines.append(f"{name} = {name}{moved}{mode}")

    def _value(self, value: Any, given: Any, hint: str) -> str:
        """The source text of an argument."""
        if value is None or isinstance(value, bool | int | float | str):
            return repr(value)
        if id(given) in self._names:
            return self._names[id(given)]
        if isinstance(value, Tensor):
            return self._tensor(value, hint)
        if type(value) in (tuple, list):
            parts = [self._value(a, b, hint) for a, b in zip(value, given, strict=True)]
            return f"[{', '.join(parts)}]" if type(value) is list else f"({', '.join(parts)},)"
        if isinstance(value, torch.nn.Module):
            self._make(value, value.state_dict())
            return self._names[id(value)]
        raise Unwritable(f"a {type(value).__name__} as an argument")

    def _tensor(self, value: Tensor, hint: str) -> str:
        for known, name in self._literals:
            if known.dtype == value.dtype and torch.equal(known, value):
                return name
        name = self._name(hint if hint.isidentifier() else "given")
        self.lines += _wrapped(f"{name} = {_literal(value)}")
        self._literals.append((value, name))
        return name

    def _name(self, name: str) -> str:
        self._taken[name] = self._taken.get(name, 0) + 1
        return name if self._taken[name] == 1 else f"{name}_{self._taken[name]}"

    def _note(self, result: Any, name: str) -> None:
        """Keep by which expression a result, and what it holds, is known from now on."""
        if result is None or isinstance(result, bool | int | float | str):
            return
        self._names.setdefault(id(result), name)
        if isinstance(result, tuple | list):
            for number, one in enumerate(result):
                self._note(one, f"{name}[{number}]")

    def _whole(self, title: str, message: str) -> str:
        imports = dict.fromkeys(
            line for part in self.parts for line in part.imports if line.strip()
        )
        top = [line for line in imports if line.startswith(("import ", "from torch", "sys."))]
        others = [line for line in imports if line not in top]
        head = textwrap.indent(f"{title}:\n{message}", "# ").rstrip()
        head = "\n".join(line.rstrip() for line in head.splitlines())
        if any("nan" in line or "inf" in line for line in self.lines):
            others = ["from math import inf, nan", *others]
        return "\n".join([head, "import torch", *top, *others, "", *self.lines, ""])


def _needed(calls: Sequence[SubjectCall], wanted: Set[int]) -> list[SubjectCall]:
    """Some calls, by their numbers, with those before whose caches they use, in order."""
    found, objects = list[SubjectCall](), set[int]()
    for call in reversed(calls):
        given = set(map(id, _objects((*call.given[0], *call.given[1].values()))))
        if call.number in wanted or objects & (given | set(map(id, _objects((call.result,))))):
            found.append(call)
            objects |= given
    return found[::-1]


def _objects(values: Sequence[Any]) -> Iterator[Any]:
    """What calls may share: caches and what holds them, but no plain tensor of inputs or module."""
    for value in values:
        if isinstance(value, tuple | list):
            yield value
            yield from _objects(value)
        elif value is not None and not isinstance(
            value, bool | int | float | str | torch.nn.Module | torch.dtype | Tensor
        ):
            yield value


def _literal(tensor: Tensor) -> str:
    """A tensor as source text, its numbers with all digits that its dtype can tell apart."""
    if not 0 < tensor.numel() <= _MOST_NUMBERS:
        raise Unwritable(f"a tensor {tuple(tensor.shape)}")
    device = "" if tensor.device.type == "cpu" else f", device={str(tensor.device)!r}"
    items = _numbers(tensor.detach().cpu())
    return f"torch.tensor({items}, dtype={tensor.dtype}{device})"


def _numbers(tensor: Tensor) -> str:
    if tensor.dim():
        return f"[{', '.join(map(_numbers, tensor))}]"
    value = tensor.item()
    return f"{value:.{_DIGITS[tensor.dtype]}g}" if tensor.dtype in _DIGITS else repr(value)


def _wrapped(line: str) -> list[str]:
    return textwrap.wrap(
        line, 98, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def _fails(script: str, expected: str) -> bool:
    """Run a script in a clean process, and say whether it ends with this exception."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "reproduce.py"
        path.write_text(script, encoding="utf-8")
        try:
            done = subprocess.run(  # noqa: S603 -- our own script, by our own interpreter
                [sys.executable, str(path)],
                capture_output=True,
                timeout=_TIME_LIMIT_S,
                cwd=folder,
                env={**os.environ, _RUNNING: "1"},
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
    last = (done.stderr.decode(errors="replace").strip().splitlines() or [""])[-1]
    return done.returncode == 1 and last.partition(":")[0].rpartition(".")[2] == expected
