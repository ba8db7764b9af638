"""The stage of a program: the module and the tokens that all programs of a case share.

A program that finds an error raises :class:`FoundError`.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import Case, InvariantViolation
from attnbench.testing import LayerSubject, rounding_of
from attnbench_plugins.properties.caches.program import MOST_ROWS, Program

TOKENS = 192
"""Columns of the tokens from which chunks are cut."""

_REMEMBERED = 512
"""Most calls without a cache whose outputs a stage remembers."""


class FoundError(InvariantViolation):
    """The error that a program found.

    Args:
        steps: the program up to the failing step.
        message: the error in a sentence.
        wrong: fields of the violation, if an output is wrong.
    """

    def __init__(self, steps: Program, message: str, **wrong: Any) -> None:
        super().__init__(message, **wrong)
        self.steps = steps


class Stage:
    """The state shared by all programs of one case: a newly made module, and tokens.

    Args:
        subject: a layer with a cache.
        case: case whose seed gives the parameters and the tokens.
    """

    def __init__(self, subject: LayerSubject, case: Case) -> None:
        self.subject, self.case = subject, case
        self._module, _ = subject.build(case.replace(lead=(1,), q_len=1, kv_len=1, mask="none"))
        generator = torch.Generator().manual_seed(case.seed)
        shape = (MOST_ROWS, TOKENS, case.query_size)
        tokens = torch.randn(shape, generator=generator, dtype=torch.float64)
        self.tokens = tokens.to(getattr(torch, case.dtype)).to(case.device)
        self._reference = self.module()
        self._outputs: dict[Any, tuple[Tensor, bool]] = {}
        self._roundings: dict[Any, Tensor] = {}

    def wide(self) -> Stage:
        """The same stage in float32, if the layer supports that and the case is in a half type."""
        half = self.case.is_narrow and "float32" in self.subject.dtypes
        return stage_of(self.subject, self.case.replace(dtype="float32")) if half else self

    def module(self) -> nn.Module:
        """A module that has not been called."""
        try:
            return copy.deepcopy(self._module)
        except Exception:  # copies_agree reports it
            case = self.case.replace(lead=(1,), q_len=1, kv_len=1, mask="none")
            return self.subject.build(case)[0]

    def one_call(
        self, module: nn.Module, hidden: Tensor, padding_mask: Tensor | None = None
    ) -> Tensor:
        """The outputs of one call without a cache."""
        with torch.no_grad():
            return self.subject.call(module, hidden, padding_mask)[0]

    def expected(
        self, hidden: Tensor, padding_mask: Tensor | None = None, *, anew: bool = False
    ) -> Tensor:
        """The remembered output of one call without a cache.

        Args:
            hidden: sequences.
            padding_mask: the mask of these tokens.
            anew: whether it has to be that of a module that has not been called before. Otherwise
                earlier calls may have had an effect, which costs a second look but no new module.
        """
        key = _key(hidden, padding_mask)
        known, of_new = self._outputs.get(key, (None, False))
        if known is not None and (of_new or not anew):
            return known
        output = self.one_call(self.module() if anew else self._reference, hidden, padding_mask)
        if known is not None and not torch.equal(known, output):
            self._reference = self.module()  # earlier calls had changed its state
        if len(self._outputs) >= _REMEMBERED:
            self._outputs.clear()
        self._outputs[key] = output, anew
        return output

    def rounding(self, hidden: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """The remembered allowed error of :meth:`expected`, ``(B, L, 1)``."""
        key = _key(hidden, padding_mask)
        if key not in self._roundings:
            if len(self._roundings) >= _REMEMBERED:
                self._roundings.clear()
            found = rounding_of(self.subject, self.module(), hidden, padding_mask)
            self._roundings[key] = found
        return self._roundings[key]


def _key(hidden: Tensor, padding_mask: Tensor | None) -> Any:
    mask = None if padding_mask is None else tuple(padding_mask.flatten().tolist())
    return tuple(hidden.shape), hidden.detach().cpu().double().numpy().tobytes(), mask


@functools.lru_cache(maxsize=8)
def stage_of(subject: LayerSubject, case: Case) -> Stage:
    """The stage of a case, which the properties of caches share."""
    return Stage(subject, case)


@dataclass
class Track:
    """One sequence with its cache.

    Args:
        number: its number, in the order in which tracks began.
        cache: the cache of its tokens.
        seen: its tokens so far.
        pads: padded slots at the left of each row; empty without padding.
        cuts: lengths of the chunks that it was given in.
        outputs: the output of each chunk.
        mask: ``(B, length)``, True for a real token; ``None`` without padding.
    """

    number: int
    cache: Any
    seen: Tensor
    pads: tuple[int, ...]
    cuts: list[int] = field(default_factory=list)
    outputs: list[Tensor] = field(default_factory=list)
    mask: Tensor | None = None

    @property
    def real(self) -> Tensor:
        """``(B, length)``: which slots hold tokens."""
        if self.mask is not None:
            return self.mask
        return torch.ones(self.seen.shape[:2], dtype=torch.bool, device=self.seen.device)

    def next_real(self, count: int, rows: Sequence[int]) -> Tensor:
        """``(B, count)``: which slots of the next chunk, with these counts by row, hold tokens."""
        past, device = self.seen.shape[1], self.seen.device
        slots = torch.arange(count, device=device)
        counts = torch.tensor(rows or (count,), device=device)
        pads = torch.tensor(self.pads or (0,), device=device)
        real = (slots < counts[:, None]) & (past + slots >= pads[:, None])
        return real.expand(self.seen.shape[0], -1)

    def keep_rows(self, index: Tensor) -> None:
        """Select rows of all but the cache."""
        self.seen = self.seen[index]
        self.mask = None if self.mask is None else self.mask[index]
        self.pads = tuple(self.pads[row] for row in index.tolist()) if self.pads else ()

    def keep_slots(self, count: int) -> None:
        """Keep the first slots of all but the cache."""
        self.seen = self.seen[:, :count]
        self.mask = None if self.mask is None else self.mask[:, :count]
        ends = itertools.accumulate(self.cuts)
        cuts = [min(cut, cut + count - end) for cut, end in zip(self.cuts, ends, strict=True)]
        self.cuts = [cut for cut in cuts if cut > 0]
