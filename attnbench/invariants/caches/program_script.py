"""A program as lines of plain torch, written as it is played, which end with an assertion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from attnbench.cases.case import Case
from attnbench.checking.reproduction.untaped import unsettling
from attnbench.invariants.caches.program import MOST_ROWS
from attnbench.invariants.caches.stage import TOKENS
from attnbench.subject.layer import LayerSubject


def script_of(subject: LayerSubject, case: Case, lines: Sequence[str]) -> list[str]:
    """The lines of a program, behind those that make what it is played with."""
    size, dtype = case.query_size, f"torch.{case.dtype}"
    names = subject.constant_parameters
    return [
        "torch.set_grad_enabled(False)",
        f"torch.manual_seed({case.seed})",
        f"module = make({size})",
        *([unsettling(names)] if names else ()),
        f"module = module.to({case.device!r}, {dtype}).eval()",
        "fresh = copy.deepcopy(module)",
        f"generator = torch.Generator().manual_seed({case.seed})",
        f"tokens = torch.randn({MOST_ROWS}, {TOKENS}, {size}, generator=generator, "
        "dtype=torch.float64)",
        f"tokens = tokens.to({case.device!r}, {dtype})",
        *_HELPERS,
        *lines,
    ]


_HELPERS = (
    "",
    "",
    "def call(module, hidden, cache=None, mask=None):",
    "    given = {} if cache is None else {'cache': cache}",
    "    given |= {} if mask is None else {'padding_mask': mask}",
    "    result = module(hidden, **given)",
    "    return result if isinstance(result, tuple) else (result, cache)",
    "",
    "",
    "def changed(operation, cache, argument):",
    "    try:",
    "        given = operation(cache, argument)",
    "    except NotImplementedError:",
    "        return cache",
    "    return cache if given is None else given",
    "",
    "",
)


_LINES = {
    "begin": ("cache_{n} = new(module, {rows})", "seen_{n} = tokens[:{rows}, :0]"),
    "chunk": ("hidden = tokens[:{rows}, {start}:{end}].clone()",),
    "without": ("output, _ = call(module, hidden)",),
    "select": ("cache_{n} = changed(select, cache_{n}, torch.tensor({rows}))",),
    "selected": ("seen_{n} = seen_{n}[{rows}]",),
    "crop": ("cache_{n} = changed(crop, cache_{n}, {length})",),
    "cropped": ("seen_{n} = seen_{n}[:, :{length}]",),
    "fork": ("cache_{other} = copy.deepcopy(cache_{n})", "seen_{other} = seen_{n}"),
}
"""The lines of what is played; a selection and a crop may be refused, and then change nothing."""


class ProgramLines:
    """The lines of what has been played so far.

    Args:
        joined: whether the outputs of all calls are compared, not that of the last alone.
    """

    def __init__(self, joined: bool) -> None:
        self.joined = joined
        self.lines: list[str] = ["outputs = []"] if joined else []
        self._step = 0

    def next_step(self) -> None:
        """A step begins."""
        self._step = len(self.lines)

    def add(self, kind: str, **given: Any) -> None:
        """The lines of something that is played, a key of :data:`_LINES`."""
        self.lines += [line.format(**given) for line in _LINES[kind]]

    def append(self, number: int, mask: Tensor | None) -> None:
        """A call with a cache on them."""
        seen, given = f"seen_{number}", ""
        self.lines.append(f"{seen} = torch.cat([{seen}, hidden], 1)")
        if mask is not None:
            self.lines.append(f"mask_{number} = torch.tensor({mask.int().tolist()}).bool()")
            given = f", mask_{number}"
        self.lines.append(f"output, cache_{number} = call(module, hidden, cache_{number}{given})")
        if self.joined:
            self.lines.append("outputs.append(output)")

    def raised(self) -> tuple[str, ...]:
        """All lines, where the last step raises."""
        return (
            *self.lines[: self._step],
            "try:",
            *(f"    {line}" for line in self.lines[self._step :]),
            "except Exception as error:",
            '    raise AssertionError(f"raised {type(error).__name__}: {error}") from error',
        )

    def counted(self, number: int) -> tuple[str, ...]:
        """All lines, where a cache tells another length than it has."""
        return (
            *self.lines,
            f"said, held = length(cache_{number}), seen_{number}.shape[1]",
            'print("length(cache) =", said, "but should be", held)',
            "assert said == held",
        )

    def compared(
        self, given: str, place: Sequence[int], other: Sequence[int], tolerance: float
    ) -> tuple[str, ...]:
        """All lines, where an output differs from what a new module gives without a cache.

        Args:
            given: what that is called on.
            place: index in the output.
            other: index in the output of the new module.
            tolerance: what is allowed.
        """
        return (
            *self.lines,
            f"expected, _ = call(fresh, {given})",
            *(["output = torch.cat(outputs, 1)"] if self.joined else ()),
            f"got = output[{', '.join(map(str, place))}].item()",
            f"expected = expected[{', '.join(map(str, other))}].item()",
            'print("got", got, "but should be", expected)',
            f"assert abs(got - expected) <= {tolerance:.6g}",
        )
