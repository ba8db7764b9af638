"""References: what the output should be, computed twice by code that shares nothing.

An :class:`Oracle` computes the output of one case vectorised in float64 and, from the spec's
``reference``, in Python floats, neither with the masks' folding or the softmax that subjects use.
It also says how far off an output may be: 4 times what moving inputs and parameters by one unit in
the last place changes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attnbench.inputs import Inputs
from attnbench.specs import MechanismSpec
from attnbench.subject import Subject

__all__ = ["Oracle", "allowed_and_bias", "float64_output", "scalar_output", "widened"]

_STEP = 2.0**-24
"""Smallest relative move: below it, float64's own rounding would drown what the move changes."""
_SURE_DRAWS = 128
"""Random directions that are tried before a subject is accused."""
_SHORT_SUM = 8.0
"""Root of the number of keys up to which a sum over them is as good as one rounding."""


def allowed_and_bias(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """``(*lead, L, S)`` each: which keys are left, and what is added, by definition, on the CPU."""
    query, key = inputs.query, inputs.key
    lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
    allowed = torch.ones(*lead, q_len, kv_len, dtype=torch.bool)
    bias = torch.zeros(*lead, q_len, kv_len, dtype=torch.float64)
    if inputs.attn_mask is not None:
        mask = inputs.attn_mask.detach().cpu().broadcast_to(allowed.shape)
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            allowed = allowed & (mask > -math.inf)
            bias = torch.where(allowed, mask.double(), bias)
    if inputs.valid_lens is not None:
        for item, lens in enumerate(inputs.valid_lens.tolist()):
            for row in range(q_len):
                allowed[item, ..., row, lens[row] if isinstance(lens, list) else lens :] = False
    if inputs.is_causal:
        for row in range(q_len):
            allowed[..., row, max(0, row + 1 + kv_len - q_len) :] = False
    return allowed, bias


def widened(module: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Module and inputs in float64 on the CPU; the values are those of the narrower dtype."""

    def widen(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.is_floating_point():
            return None if tensor is None else tensor.detach().cpu()
        return tensor.detach().cpu().double()

    tensors: dict[str, Any] = {name: widen(tensor) for name, tensor in inputs.tensors()}
    return copy.deepcopy(module).cpu().double(), inputs.replace(**tensors)


def float64_output(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The output ``(*lead, L, Ev)`` in float64 on the CPU; see :attr:`Oracle.output`."""
    return Oracle(subject, module, inputs).output


def scalar_output(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor | None:
    """The same by Python floats, from ``spec.reference``; ``None`` if there is no reference."""
    oracle = Oracle(subject, module, inputs)
    return oracle.scalar(oracle.rows()) if oracle.has_scalar else None


class Oracle:
    """What the output of one case should be, and how far off it may be.

    Args:
        subject: for a scoring function or a kernel, the scoring module's scores are taken, and
            softmax and pooling are written out here; a mechanism is its own reference in float64.
        module: in the dtype under test.
        inputs: likewise.
    """

    def __init__(self, subject: Subject, module: nn.Module, inputs: Inputs) -> None:
        self.subject = subject
        self.eps = torch.finfo(inputs.query.dtype).eps
        self.tiny = torch.finfo(inputs.query.dtype).smallest_normal * self.eps
        self.module, self.inputs = widened(module, inputs)
        self.allowed, self.bias = allowed_and_bias(self.inputs)
        self._is_mechanism = isinstance(subject.spec, MechanismSpec)
        if not self._is_mechanism:
            # a slot that every query is kept from may hold NaN, which 0 times it would spread
            seen = self.allowed.any(-2).unsqueeze(-1)
            self._key, self._value = (
                torch.where(seen, tensor, torch.zeros_like(tensor))
                for tensor in (self.inputs.key, self.inputs.value)
            )

    @functools.cached_property
    def output(self) -> Tensor:
        """The output ``(*lead, L, Ev)`` in float64 on the CPU."""
        if self._is_mechanism:
            with torch.no_grad():
                return self.subject.output(self.module, self.inputs)
        return self.log_weights.exp() @ self._value

    @functools.cached_property
    def scores(self) -> Tensor:
        """Scores ``(*lead, L, S)`` of a scoring function or kernel, with the mask's bias."""
        with torch.no_grad():
            scores: Tensor = self.module(self.inputs.query, self._key) + self.bias
        return scores

    @functools.cached_property
    def log_weights(self) -> Tensor:
        """Logarithms of the weights ``(*lead, L, S)``; ``-inf`` where a key is hidden."""
        scores = self.scores.masked_fill(~self.allowed, -math.inf)
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0.0)
        total = (scores - top).exp().sum(-1, keepdim=True)
        log = scores - top - total.log().masked_fill(total == 0, 0.0)
        return log.masked_fill(~self.allowed, -math.inf)

    @property
    def has_scalar(self) -> bool:
        """Whether there is a reference in Python floats that can compute this case."""
        if self.subject.maker.reference is None:
            return False
        # a mechanism's reference is told which keys are left, and nothing of what is added
        return not (self._is_mechanism and bool((self.bias != 0).any()))

    def rows(self, pairs: int | None = None) -> list[tuple[int, int]]:
        """Some rows of the output, as (item, query), spread over all of them.

        Args:
            pairs: about how many pairs of query and key they should hold; ``None`` for all.
        """
        q_len, kv_len = self.allowed.shape[-2:]
        count = self.allowed[..., 0].numel()
        some = count if pairs is None else max(2, pairs // kv_len)
        if some >= count:
            return [divmod(row, q_len) for row in range(count)]
        spread = {round(i * (count - 1) / (some - 1)) for i in range(some)}
        return [divmod(row, q_len) for row in sorted(spread)]

    def scalar(self, rows: list[tuple[int, int]]) -> Tensor:
        """Rows of the output ``(len(rows), Ev)`` by Python floats."""
        reference: Callable[..., Any] | None = self.subject.maker.reference
        assert reference is not None
        tensors = (*(getattr(self.inputs, name) for name in ("query", "key", "value")),)
        flat = [t.reshape(-1, *t.shape[-2:]) for t in (*tensors, self.allowed, self.bias)]
        items: dict[int, list[list[list[Any]]]] = {}
        found = []
        for item, row in rows:
            if item not in items:
                items[item] = [tensor[item].tolist() for tensor in flat]
                if self._is_mechanism:
                    items[item][0] = reference(self.module, *items[item][:4])
            query, key, value, may, add = items[item]
            if self._is_mechanism:
                found.append(query[row])
            else:
                score = functools.partial(reference, self.module, query[row])
                found.append(_pooled(score, key, value, may[row], add[row]))
        return torch.tensor(found, dtype=torch.float64)

    def select(self, tensor: Tensor, rows: list[tuple[int, int]]) -> Tensor:
        """Some rows of an output ``(*lead, L, Ev)``: ``(len(rows), Ev)``."""
        flat = tensor.reshape(-1, *tensor.shape[-2:])
        items, queries = zip(*rows, strict=True)
        return flat[list(items), list(queries)]

    def with_scalar(self, rows: list[tuple[int, int]]) -> Tensor:
        """The output ``(*lead, L, Ev)`` with some rows by Python floats instead."""
        flat = self.output.reshape(-1, *self.output.shape[-2:]).clone()
        items, queries = zip(*rows, strict=True)
        flat[list(items), list(queries)] = self.scalar(rows)
        return flat.reshape(self.output.shape)

    def budget(self, *, units: float = 4.0, eps: float | None = None, sure: bool = False) -> Tensor:
        """What an output may be off by, element by element: ``(*lead, L, Ev)``.

        Args:
            units: how many units in the last place inputs, parameters and values may move.
            eps: one such unit, relative; that of the dtype under test by default.
            sure: try many random directions instead of few, and for a mechanism, of which nothing
                but the output is seen, round each step of its own at random too. Few directions
                acquit; before a subject is accused, all is tried.
        """
        eps = self.eps if eps is None else eps
        draws = _SURE_DRAWS if sure else 4
        if self._is_mechanism:
            *_, widest = self._mechanism_budgets(units, eps, draws, rounded=sure)
            return widest
        log = self.log_weights
        weights, move = log.exp(), units * self._score_move(eps, draws)
        # within ± move of each score, a weight lies within these bounds whatever the others do
        least = torch.logsumexp(log - move, -1, keepdim=True)
        most = torch.logsumexp(log + move, -1, keepdim=True)
        up = torch.exp((log + move - least).clamp_max(0.0)) - weights
        down = weights - torch.exp(log - move - most)
        up, down = (t.nan_to_num(0.0).clamp_min(0.0) for t in (up, down))
        down = torch.minimum(down, up.sum(-1, keepdim=True) - up)  # what one loses, others gain
        slack = torch.maximum(up, down)
        spread = (self._value.unsqueeze(-3) - self.output.unsqueeze(-2)).abs()
        return (slack.unsqueeze(-2) @ spread).squeeze(-2) + self.floor(units=units, eps=eps)

    def sure_budgets(self, *, units: float = 4.0, eps: float | None = None) -> Iterator[Tensor]:
        """Wider and wider ones up to ``budget(sure=True)``, which for a mechanism takes seconds."""
        if self._is_mechanism:
            eps = self.eps if eps is None else eps
            yield from self._mechanism_budgets(units, eps, _SURE_DRAWS, rounded=True)
        else:
            yield self.budget(units=units, eps=eps, sure=True)

    def floor(self, *, units: float = 4.0, eps: float | None = None) -> Tensor:
        """The part of the budget that takes no further run; broadcasts to ``(*lead, L, Ev)``.

        It is for rounding the values, the weights and the output, and not for the scores.
        """
        eps = self._summed(self.eps if eps is None else eps)
        if self._is_mechanism:
            sizes = (self.output.abs().amax(-1, keepdim=True), self.inputs.value.abs().amax())
            return units * (eps * torch.maximum(*(t.nan_to_num(0.0) for t in sizes)) + self.tiny)
        size = self._value.abs()
        flushed = self.tiny * (1 + size.sum(-2, keepdim=True))
        return units * (eps * (self.log_weights.exp() @ size) + flushed)

    def _summed(self, eps: float) -> float:
        """What adding up the values of all keys may be off by, relative to their absolute sum.

        The roundings of a long sum walk at random, with the root of its length; half types are
        added up in float32.
        """
        walk = math.sqrt(self.allowed.shape[-1]) / _SHORT_SUM
        return eps + max(0.0, walk - 1.0) * min(eps, torch.finfo(torch.float32).eps)

    def score_budget(self, *, units: float = 4.0) -> Tensor:
        """What a score may be off by, ``(*lead, L, S)``: what moving all by some units moves it."""
        return units * self._score_move(self.eps, 8)

    def _score_move(self, eps: float, draws: int) -> Tensor:
        """``(*lead, L, S)``: how far a move of all by one unit moves each score."""
        step = max(eps, _STEP)
        total = torch.zeros_like(self.scores)
        for module, inputs in self.moved(step, draws):
            seen = self.allowed.any(-2).unsqueeze(-1)
            key = torch.where(seen, inputs.key, torch.zeros_like(inputs.key))
            bias = self.bias
            if inputs.attn_mask is not None and inputs.attn_mask.is_floating_point():
                bias = torch.where(self.allowed, inputs.attn_mask, bias)
            with torch.no_grad():
                total += (module(inputs.query, key) + bias - self.scores).square()
        size = torch.maximum((self.scores - self.bias).abs(), self.bias.abs())
        move = (total / draws).sqrt() * (eps / step)
        # a score may always be rounded itself, also where all directions happened to cancel
        move = torch.maximum(move, eps * size) + self.tiny
        return move.masked_fill(~self.allowed, 0.0)

    def _mechanism_budgets(
        self, units: float, eps: float, draws: int, *, rounded: bool
    ) -> Iterator[Tensor]:
        """Of 4 directions, of 8 and so on; each at least as wide as the one before."""
        largest = torch.zeros_like(self.output)
        floor = self.floor(units=units, eps=eps)
        # one unit, times the units, where the output is smooth; all of them at once near a jump
        steps = (max(eps, _STEP), units * eps)
        modes = [_RandomRounding(step) if rounded else contextlib.nullcontext() for step in steps]
        moved = zip(*(self.moved(step, draws) for step in steps), strict=True)
        for count, pairs in enumerate(moved, 1):
            for (module, inputs), step, mode in zip(pairs, steps, modes, strict=True):
                with mode, torch.no_grad():
                    output = self.subject.output(module, inputs)
                change = (output - self.output).abs() * (units * eps / step)
                largest = torch.maximum(largest, change.nan_to_num(0.0))
            if count == draws or (count >= 4 and count.bit_count() == 1):
                yield largest.amax(-1, keepdim=True) + floor

    def moved(self, step: float, draws: int) -> Iterator[tuple[nn.Module, Inputs]]:
        """Module and inputs, moved by one step up or down at random, as often as asked for."""
        generator = torch.Generator().manual_seed(0)

        def moved(tensor: Tensor) -> Tensor:
            signs = torch.randint(2, tensor.shape, generator=generator).double() * 2 - 1
            near = tensor + signs * (tensor.abs() * step + self.tiny)
            return torch.where(tensor.isfinite(), near, tensor)

        module = copy.deepcopy(self.module)
        state = [
            (near, true)
            for near, true in zip(
                [*module.parameters(), *module.buffers()],
                [*self.module.parameters(), *self.module.buffers()],
                strict=True,
            )
            if true.is_floating_point()
        ]
        mask = self.inputs.attn_mask
        for _ in range(draws):
            with torch.no_grad():  # not around the yield: who takes no further one would stay in it
                for near, true in state:
                    near.copy_(moved(true))
                inputs = self.inputs.map(moved)
                if mask is not None and mask.is_floating_point():
                    inputs = inputs.replace(attn_mask=moved(mask))
            yield module, inputs


class _RandomRounding(TorchDispatchMode):
    """Rounds each result of each operation up or down at random, to some precision.

    Results that the precision holds exactly (positions, counts, ones and zeros) stay as they are.
    """

    def __init__(self, eps: float) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.eps = eps
        self.generator = torch.Generator().manual_seed(0)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not isinstance(result, Tensor) or not result.is_floating_point() or func.is_view:
            return result
        unit = torch.ldexp(torch.full_like(result, self.eps / 2), torch.frexp(result).exponent)
        low = (result / unit).floor()
        up = torch.randint(2, result.shape, generator=self.generator).to(result.dtype)
        rounded = torch.where(low * unit == result, result, (low + up) * unit)
        return torch.where(rounded.isfinite(), rounded, result)


def _pooled(
    score: Callable[[list[float]], float],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[bool],
    bias: list[float],
) -> list[float]:
    """One row of the output: softmax over the keys that are left, and the mean of their values."""
    slots = [s for s, yes in enumerate(allowed) if yes]
    scores = [score(key[s]) + bias[s] for s in slots]
    top = max(scores, default=0.0)
    weights = [math.exp(x - top) for x in scores]
    total = math.fsum(weights)
    columns = zip(*(value[s] for s in slots), strict=True) if slots else ()
    pooled = [math.fsum(map(operator.mul, weights, column)) / total for column in columns]
    return pooled or [0.0] * len(value[0])
