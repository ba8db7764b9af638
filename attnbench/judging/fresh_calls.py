"""Calls whose inputs nobody could know before: fresh values at the same addresses, each checked."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.judging.confined import Confined
from attnbench.judging.decision import RefusedError
from attnbench.judging.entry import Answer
from attnbench.judging.right_answers import error_of_all, error_of_rows
from attnbench.judging.shared_bytes import copy_of
from attnbench.subject.tensors import Inputs, make_inputs

_REGIMES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 32.0, 1 / 32)
"""Sizes of queries that a call draws from: softmax saturates at one and is flat at the other."""
_POOL = 3
LOST = -1e30
"""Where a floating mask in float32 is below it for all keys of a query, all have equal weights."""


def keywords_of_case(case: Case, taken: Mapping[str, str], style: str) -> dict[str, Any] | None:
    """The keyword arguments, by meaning, for the mask of a case; ``None`` if it takes no such mask.

    Args:
        case: its mask is a key of :data:`attnbench.cases.case.MASKS`.
        taken: what the callee takes, to its own name of it.
        style: style of call; in ``sdpa``, causality ends at the top left.
    """
    inputs = make_inputs(case)
    as_flag = style == "flash" or case.q_len == case.kv_len
    if case.mask == "causal" and "is_causal" in taken and as_flag:
        return {"is_causal": True}
    mask = inputs.mask.as_tensor()
    if mask is None:
        return {}
    if "attn_mask" not in taken:
        return None
    while mask.dim() < 4:
        mask = mask.unsqueeze(-3)
    return {"attn_mask": mask}


@dataclass
class Tally:
    """How many calls were made, how many of them were right, and the largest sizes of those."""

    calls: int = 0
    right: int = 0
    largest: dict[str, int] = field(default_factory=lambda: dict.fromkeys("LSE", 0))

    def add(self, case: Case) -> None:
        """Count a right answer."""
        self.right += 1
        sizes = zip("LSE", (case.q_len, case.kv_len, case.query_size), strict=True)
        self.largest = {name: max(self.largest[name], size) for name, size in sizes}


class Stream:
    """Fresh inputs of one shape, made by one pass over memory.

    A few tensors are drawn at first; each call multiplies their features by new random numbers, so
    that no call's output follows from earlier ones.

    Args:
        case: its leading sizes, at most two, its other sizes and its dtype.
        keywords: of the call, by meaning.
        style: style of call.
        generator: draws everything.
        causal: where causality ends: ``"bottom_right"`` or ``"top_left"``.
        layout: ``"packed"`` for views of one tensor (B, L, 3, H, E), with L = S, ``"misaligned"``
            for tensors one element behind the start of their storage, or ``"plain"``.
        kv_heads: number of heads of key and value, if grouped.
        alone: whether one tensor is query, key and value.
        name: what is special about it.
    """

    def __init__(
        self,
        case: Case,
        keywords: Mapping[str, Any],
        style: str,
        generator: torch.Generator,
        kv_heads: int | None = None,
        *,
        causal: str = "bottom_right",
        layout: str = "plain",
        alone: bool = False,
        name: str = "",
    ) -> None:
        self.case, self.keywords, self.alone = case, keywords, alone
        self.causal, self.layout, self.name = causal, layout, name
        self.generator, self.grouped = generator, kv_heads is not None
        self.turned = style == "flash"
        lead = (*(1,) * (2 - len(case.lead)), *case.lead)
        self.kv_lead = lead if kv_heads is None else (lead[0], kv_heads)
        dtype = getattr(torch, case.dtype)
        shapes = (
            (*lead, case.q_len, case.query_size),
            (*self.kv_lead, case.kv_len, case.key_size),
            (*self.kv_lead, case.kv_len, case.value_size),
        )
        self.pools = [
            [torch.randn(self._stored(s), generator=generator).to(dtype) for _ in range(_POOL)]
            for s in shapes
        ]
        self.drawn: list[tuple[Tensor, Tensor]] = []

    def _stored(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], shape[2], shape[1], shape[3]) if self.turned else shape

    def draw(self) -> None:
        """Choose what the next call's inputs are made of."""
        size = _REGIMES[int(torch.randint(len(_REGIMES), (), generator=self.generator))]
        size = 0.5 if self.alone else size  # at 1 a row would attend to nothing but itself
        self.drawn = []
        for pool, scale in zip(self.pools, (size, 1.0, 1.0), strict=True):
            place = int(torch.randint(_POOL, (), generator=self.generator))
            factors = torch.rand(pool[0].shape[-1], generator=self.generator) + 0.5
            signs = torch.randint(2, factors.shape, generator=self.generator) * 2 - 1
            self.drawn.append((pool[place], (factors * signs * scale).to(pool[0].dtype)))

    def tensors(self) -> list[Tensor]:
        """The drawn inputs, as they are stored."""
        made = [base * factors for base, factors in self.drawn[: 1 if self.alone else 3]]
        if self.layout == "packed":
            parts = made if self.turned else [t.transpose(1, 2) for t in made]
            parts = list(torch.stack(parts, 2).unbind(2))
            return parts if self.turned else [t.transpose(1, 2) for t in parts]
        if self.layout == "misaligned":
            return [_misaligned(tensor) for tensor in made]
        return made * 3 if self.alone else made

    def inputs(self) -> Inputs:
        """The drawn inputs as ``(B, H, L, E)``, with causality as a mask."""
        query, key, value = (t.transpose(1, 2) if self.turned else t for t in self.tensors())
        if self.grouped:
            groups = query.shape[1] // key.shape[1]
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        mask = self.keywords.get("attn_mask")
        if self.keywords.get("is_causal"):
            pair = query.shape[-2], key.shape[-2]
            last = 0 if self.causal == "top_left" else pair[1] - pair[0]
            mask = torch.ones(pair, dtype=torch.bool).tril(last)
        if mask is not None and mask.dtype == torch.float32:
            lost = (mask.lt(LOST) & mask.isfinite()).all(-1, keepdim=True)  # rounds scores away
            query, mask = query.masked_fill(lost, 0.0), mask.masked_fill(lost, 0.0)
        return Inputs(query, key, value, attn_mask=mask, scale=self.keywords.get("scale"))


def _misaligned(tensor: Tensor) -> Tensor:
    wide = tensor.new_empty(tensor.numel() + 1)
    return wide[1:].view(tensor.shape).copy_(tensor)


class Caller:
    """Calls a candidate and looks at its answers.

    Args:
        cell: the candidate's process.
        fresh: makes another process of the same candidate, to find out why an answer is wrong.
        names: the callee's own name of each keyword.
        chance: what is looked at, in which order.
    """

    def __init__(
        self,
        cell: Confined,
        fresh: Callable[[], Confined],
        names: Mapping[str, str],
        chance: random.Random,
    ) -> None:
        self.cell, self.fresh = cell, fresh
        self.names, self.chance = names, chance
        self.tally = Tally()
        self.timing = False

    def call(self, stream: Stream, *, whole: bool = False) -> Answer:
        """Call with what a stream has drawn; check the answer.

        Args:
            stream: of which :meth:`Stream.draw` was called.
            whole: compare all rows and not a few.

        Raises:
            RefusedError: the answer is wrong, and why.
        """
        answer = self._ask(self.cell, stream)
        self.tally.calls += 1
        if answer.output is None:
            return answer
        places = self._places(stream, whole=whole)
        if self.error(stream, answer.output, places, whole=whole) > 1.0:
            self._refuse(stream, places)
        self.tally.add(stream.case)
        return answer

    def _ask(self, cell: Confined, stream: Stream) -> Answer:
        keywords = {
            self.names[name]: copy_of(value) if isinstance(value, Tensor) else value
            for name, value in stream.keywords.items()  # which the candidate must not change
        }
        return cell.call(stream.tensors(), keywords)

    def _places(self, stream: Stream, *, whole: bool) -> list[tuple[int, list[int]]]:
        """Items and rows of an output to compare: one item, or some of those of a whole output."""
        items, q_len = math.prod(stream.case.lead), stream.case.q_len
        chosen = [q_len - 1, *(self.chance.randrange(q_len) for _ in range(2))]
        if not whole:
            some = sorted({*chosen[self.chance.randrange(2) :]})
            return [(self.chance.randrange(items), some)]
        rows = sorted({0, *chosen})
        return [(self.chance.randrange(items), rows) for _ in range(min(items, 4))]

    def error(
        self,
        stream: Stream,
        output: Tensor,
        places: list[tuple[int, list[int]]],
        *,
        whole: bool = False,
    ) -> float:
        """The error of an output as a multiple of what is allowed; infinite for a wrong shape."""
        inputs = stream.inputs()
        if stream.turned and output.dim() == 4:
            output = output.transpose(1, 2)
        wanted = (*inputs.query.shape[:-1], inputs.value.shape[-1])
        if tuple(output.shape) != wanted or output.dtype != inputs.query.dtype:
            return float("inf")
        if whole:
            return error_of_all(inputs, output, places)
        return max(error_of_rows(inputs, output, *place) for place in places)

    def _refuse(self, stream: Stream, places: list[tuple[int, list[int]]]) -> None:
        """Refuse for a wrong answer, whose places are compared again where more is asked."""

        def right(output: Tensor | None) -> bool:
            return output is not None and self.error(stream, output, places, whole=True) <= 1.0

        case = stream.case.id
        if right(self.cell.again()):
            raise RefusedError("arrived_late", f"at {case}")
        right_again = right(self._ask(self.cell, stream).output)
        other = self.fresh()
        try:
            right_alone = right(self._ask(other, stream).output)
        finally:
            other.close()
        name = "wrong"
        if right_again:
            name = "differs_when_timed" if self.timing else "unsteady"
        elif right_alone:
            name = "depends_on_history"
        seen = f"call {self.tally.calls} at {case}" + (f" ({stream.name})" if stream.name else "")
        alike = "a new process gives the right answer" if right_alone else "so is a new process's"
        raise RefusedError(name, f"{seen}; {alike}")
