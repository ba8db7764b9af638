"""Calls whose inputs nobody could know before: fresh values at the same addresses, each checked."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.judging.confined import Confined
from attnbench.judging.decision import RefusedError
from attnbench.judging.entry import Answer
from attnbench.judging.right_answers import error_of_all, error_of_rows, furthest
from attnbench.judging.secret import Secret
from attnbench.judging.shared_bytes import copy_of
from attnbench.subject.tensors import Inputs, lay_out

_REGIMES = (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 32.0, 1 / 32)
"""Sizes of queries that a call draws from: softmax saturates at one and is flat at the other."""
_QUERIES = {"saturating": 32.0, "flat": 1 / 32, "no_queries": 0.0, "tiny_queries": 2.0**-13}
_KEYS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "growing": lambda t: t * torch.linspace(0.1, 3.0, t.shape[-2]).unsqueeze(-1),
    "shrinking": lambda t: t * torch.linspace(3.0, 0.1, t.shape[-2]).unsqueeze(-1),
    "far_keys": lambda t: t + 4.0,
    "equal_keys": lambda t: t[..., :1, :].expand(t.shape).clone(),
    "outlier": lambda t: torch.cat([50 * t[..., :1], t[..., 1:]], -1),
}
_VALUES: Mapping[str, Callable[[Tensor], Tensor]] = {
    "far_values": lambda t: t + 8.0,
    "large_values": lambda t: t * 1e3,
    "huge_values": lambda t: t * 1e5,
    "tiny_values": lambda t: t * 1e-5,
}
_POOL = 3
LOST = -1e30
"""Where a floating mask in float32 is below it for all keys of a query, scores are rounded away."""
_UNITS = 4.0
"""By how many units of rounding a mean of values may lie outside of them, as in error budgets."""


@dataclass
class Tally:
    """How many calls were made, right and compared whole; largest sizes of right ones."""

    calls: int = 0
    right: int = 0
    whole: int = 0
    largest: dict[str, int] = field(default_factory=lambda: dict.fromkeys("BHLSE", 0))

    def add(self, case: Case, *, whole: bool) -> None:
        """Count a right answer."""
        self.right += 1
        self.whole += whole
        sizes = *case.lead[-2:], case.q_len, case.kv_len, case.query_size
        for name, size in zip("BHLSE"[-len(sizes) :], sizes, strict=True):
            self.largest[name] = max(self.largest[name], size)


class Stream:
    """Fresh inputs of one shape, made by one pass over memory.

    A few tensors are drawn at first; each call multiplies their features by new random numbers, so
    that no call's output follows from earlier ones.

    Args:
        case: its leading sizes, at most two, its other sizes and its dtype.
        keywords: of the call, by meaning.
        style: style of call.
        secret: draws the values of each call.
        causal: where causality ends: ``"bottom_right"`` or ``"top_left"``.
        layouts: of query, key and value: keys of :data:`attnbench.cases.case.LAYOUTS`, or
            ``"misaligned"`` for a tensor one element behind the start of its storage, or
            ``"one_head"`` for one that all heads share, with stride 0.
        shared: ``"three"`` tensors, or ``"packed"`` for views of one tensor (B, L, 3, H, E), with
            L = S, ``"alone"`` where one is query, key and value, or ``"shared"`` where one is key
            and value.
        scores, values: what is special about query and key, and about values, as in
            :data:`attnbench.judging.axes.AXES`; where ``scores`` is empty, each call draws how
            large its queries are.
        name: what is special about it.
    """

    def __init__(
        self,
        case: Case,
        keywords: Mapping[str, Any],
        style: str,
        secret: Secret,
        kv_heads: int | None = None,
        *,
        causal: str = "bottom_right",
        layouts: Sequence[str] = ("contiguous",) * 3,
        shared: str = "three",
        scores: str = "",
        values: str = "",
        name: str = "",
    ) -> None:
        self.case, self.keywords = case, keywords
        self.causal, self.layouts, self.shared = causal, layouts, shared
        self.scores, self.values, self.name = scores, values, name
        self.secret, self.grouped = secret, kv_heads is not None
        self.turned = style == "flash"
        lead = (*(1,) * (2 - len(case.lead)), *case.lead)
        self.kv_lead = lead if kv_heads is None else (lead[0], kv_heads)
        self.shapes = (
            (*lead, case.q_len, case.query_size),
            (*self.kv_lead, case.kv_len, case.key_size),
            (*self.kv_lead, case.kv_len, case.value_size),
        )
        self.pools: list[list[Tensor]] = []
        self.drawn: list[tuple[Tensor, Tensor]] = []

    def by_heads(self, output: Tensor) -> Tensor:
        """An output of the callee as ``(B, H, L, Ev)``."""
        return output.transpose(1, 2) if self.turned and output.dim() == 4 else output

    def in_words(self) -> str:
        """Its sizes, its dtype, and what is special about it."""
        (batch, heads, q_len, size), (_, _, kv_len, _), (*_, value_size) = self.shapes
        sizes = f"B={batch}, H={heads}, L={q_len}, S={kv_len}, E={size}, Ev={value_size}"
        return ", ".join(part for part in (sizes, self.case.dtype, self.name) if part)

    def _pools(self, generator: torch.Generator) -> list[list[Tensor]]:
        """Values for query, key and value: one of each if what they are like is asked for."""
        dtype, count = getattr(torch, self.case.dtype), 1 if self.scores else _POOL
        pools = []
        changes = (None, _KEYS.get(self.scores), _VALUES.get(self.values))
        for shape, change in zip(self.shapes, changes, strict=True):
            drawn = [torch.randn(shape, generator=generator) for _ in range(count)]
            drawn = drawn if change is None else list(map(change, drawn))
            turned = (t.transpose(1, 2) if self.turned else t for t in drawn)
            pools.append([t.to(dtype).contiguous() for t in turned])
        return pools

    def draw(self) -> None:
        """Choose what the next call's inputs are made of."""
        generator = self.secret.generator()
        self.pools = self.pools or self._pools(generator)
        place = int(torch.randint(len(_REGIMES), (), generator=generator))
        size = _QUERIES.get(self.scores, 1.0) if self.scores else _REGIMES[place]
        size = min(size, 0.5) if self.shared == "alone" else size  # or a row attends to itself
        self.drawn = []
        for pool, scale in zip(self.pools, (size, 1.0, 1.0), strict=True):
            place = int(torch.randint(len(pool), (), generator=generator))
            factors = torch.rand(pool[0].shape[-1], generator=generator) + 0.5
            signs = torch.randint(2, factors.shape, generator=generator) * 2 - 1
            self.drawn.append((pool[place], (factors * signs * scale).to(pool[0].dtype)))

    def tensors(self) -> list[Tensor]:
        """The drawn inputs, as they are stored."""
        made = [
            _laid_out(base * factors, layout, 2 if self.turned else 1)
            for (base, factors), layout in zip(self.drawn, self.layouts, strict=True)
        ]
        if self.shared == "packed":
            parts = made if self.turned else [t.transpose(1, 2) for t in made]
            parts = list(torch.stack(parts, 2).unbind(2))
            return parts if self.turned else [t.transpose(1, 2) for t in parts]
        return {"alone": made[:1] * 3, "shared": [*made[:2], made[1]]}.get(self.shared, made)

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
        if (lost := self._lost()) is not None and mask is not None:
            query, mask = query.masked_fill(lost, 0.0), mask.masked_fill(lost, 0.0)
        return Inputs(query, key, value, attn_mask=mask, scale=self.keywords.get("scale"))

    def _lost(self) -> Tensor | None:
        """The rows of a floating mask by which scores are rounded away, ``(..., L, 1)``."""
        mask = self.keywords.get("attn_mask")
        if mask is None or not mask.is_floating_point():
            return None
        lost: Tensor = (mask.lt(LOST) & mask.isfinite()).all(-1, keepdim=True)
        return lost

    def averaged(self, output: Tensor, value: Tensor) -> Tensor:
        """An output with the plain mean of the values in place of any mean, where scores are lost.

        One pass over all keys has equal weights there. If parts of them are merged by their
        log-sum-exps, the lengths of the parts are rounded away as well, and the weights are others.

        Args:
            output, value: ``(B, H, L, Ev)`` and ``(B, H, S, Ev)``.
        """
        lost = self._lost()
        if lost is None:
            return output
        low, high = value.double().aminmax(dim=-2, keepdim=True)
        slack = _UNITS * torch.finfo(value.dtype).eps * torch.maximum(low.abs(), high.abs())
        wide = output.double()
        within = ((wide >= low - slack) & (wide <= high + slack)).all(-1, keepdim=True)
        return torch.where(lost & within, value.double().mean(-2, keepdim=True), wide)


def _laid_out(tensor: Tensor, layout: str, heads: int) -> Tensor:
    if layout == "one_head":
        return tensor.narrow(heads, 0, 1).expand(tensor.shape)
    if layout != "misaligned":
        return lay_out(tensor, layout)
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
        seed = self.chance.getrandbits(32)
        if self.error(stream, answer.output, seed, whole=whole) > 1.0:
            self._refuse(stream, answer.output, seed)
        self.tally.add(stream.case, whole=whole)
        return answer

    def _ask(self, cell: Confined, stream: Stream) -> Answer:
        keywords = {
            self.names[name]: copy_of(value) if isinstance(value, Tensor) else value
            for name, value in stream.keywords.items()  # which the candidate must not change
        }
        return cell.call(stream.tensors(), keywords)

    def error(self, stream: Stream, output: Tensor, seed: int, *, whole: bool = False) -> float:
        """The error of an output as a multiple of what is allowed; infinite for a wrong shape.

        Args:
            stream: what the call was given.
            output: of the call.
            seed: draws which rows are compared.
            whole: compare all rows, or as many as there is time for, and not one or a few.
        """
        inputs, output = stream.inputs(), stream.by_heads(output)
        wanted = (*inputs.query.shape[:-1], inputs.value.shape[-1])
        if tuple(output.shape) != wanted or output.dtype != inputs.query.dtype:
            return float("inf")
        error = _error(inputs, output, seed, whole=whole)
        if error <= 1.0:
            return error
        return _error(inputs, stream.averaged(output, inputs.value), seed, whole=whole)

    def _refuse(self, stream: Stream, wrong: Tensor, seed: int) -> None:
        """Refuse for a wrong answer; the same rows of other calls are compared to find out why."""
        at, shown = stream.in_words(), _shown(stream, wrong, seed)

        def right(output: Tensor | None) -> bool:
            return output is not None and all(
                self.error(stream, output, seed, whole=whole) <= 1.0 for whole in (False, True)
            )

        if right(self.cell.again()):
            raise RefusedError("arrived_late", f"at {at}")
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
        answer = "the right answer" if right_alone else "a wrong answer too"
        seen = f"{shown}, in call {self.tally.calls} with {at}"
        raise RefusedError(name, f"{seen}; a new process gives {answer}")


def _error(inputs: Inputs, output: Tensor, seed: int, *, whole: bool) -> float:
    chance = random.Random(seed)  # noqa: S311  # to be repeated by seed
    if whole:
        return error_of_all(inputs, output, chance)
    q_len = inputs.query.shape[-2]
    chosen = [q_len - 1, *(chance.randrange(q_len) for _ in range(2))]
    rows = sorted({*chosen[chance.randrange(2) :]})
    return error_of_rows(inputs, output, chance.randrange(inputs.query.shape[:-2].numel()), rows)


def _shown(stream: Stream, output: Tensor, seed: int) -> str:
    """The worst element of a wrong output, or its shape and dtype if those are wrong."""
    inputs = stream.inputs()
    answer = stream.by_heads(output)
    (*lead, q_len, _), last = inputs.query.shape, inputs.value.shape[-1]
    if answer.shape != (*lead, q_len, last) or answer.dtype != inputs.query.dtype:
        got = f"{tuple(output.shape)} in {output.dtype}"
        shape = (lead[0], q_len, lead[1], last) if stream.turned else (*lead, q_len, last)
        return f"the output has shape {got}, but should have {shape} in {inputs.query.dtype}"
    (item, head, row, column), found, right = furthest(inputs, answer, random.Random(seed))  # noqa: S311 -- by the seed of the rows
    place = [item, row, head, column] if stream.turned else [item, head, row, column]
    return f"output{place} = {found:.6g}, but should be {right:.6g}"
