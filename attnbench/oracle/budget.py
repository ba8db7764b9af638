"""The expected output and its error budget.

An :class:`Oracle` is a reference with a budget: the allowed error is 4 times the change that moving
inputs and parameters by one unit in the last place makes.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnbench.oracle.operations import RoundedMeans, RoundedOperations
from attnbench.oracle.references import NormEpsilon, Reference
from attnbench.oracle.textbook import TEXTBOOK, ScaledDot, is_textbook, textbook_output
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

SMALLEST_STEP = 2.0**-24
"""Smallest relative move; the effect of a smaller one would vanish in float64's rounding."""
_FEW_DRAWS = 4
_SURE_DRAWS = 128
"""Numbers of random directions that are tried first, and before a subject fails."""
_JUMP = 16.0
"""If the output changes by so much more than in proportion to a move, it is not continuous."""
SHORT_SUM, _SHORT_PRODUCT = 1.6, 8.0
"""Square roots of the numbers of keys, and of features, whose sum counts as a single rounding.

Each step of a sum of like signs rounds by 0.29 units (the standard deviation of half a unit each
way), and an output is the quotient of two sums over S keys: 0.41 √S units. The allowed 4 units are
six such deviations, which one element in 500 million exceeds, if √S counts as √S / 1.6.
"""


class Oracle(Reference):
    """The expected output of one case and its error budget."""

    def __init__(self, subject: Subject, module: nn.Module, inputs: Inputs) -> None:
        super().__init__(subject, module, inputs)
        self.eps = subject.eps(inputs.query.dtype)
        self.tiny = torch.finfo(inputs.query.dtype).smallest_normal * self.eps

    def run(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output of a mechanism in float64, or that of the textbook in its place."""
        return textbook_output(inputs) if self._is_replaced else super().run(module, inputs)

    @functools.cached_property
    def _is_replaced(self) -> bool:
        """Whether the textbook takes the place of a mechanism that does not run in float64."""
        if not self._is_mechanism or "float64" in self.subject.dtypes:
            return False
        follows = self.subject.conventions.empty_rows == "zeros" or self.allowed.any(-1).all()
        with contextlib.suppress(Exception), torch.no_grad():
            super().run(self.module, self.inputs)
            return False
        declared = self.subject.maker.reference is not None
        return declared and bool(follows) and is_textbook(self.subject)

    def budget(self, *, units: float = 4.0, eps: float | None = None, sure: bool = False) -> Tensor:
        """The allowed error of each element of the output, ``(*lead, L, Ev)``.

        Args:
            units: units in the last place by which inputs, parameters and values may move.
            eps: one such unit, relative; by default that of the dtype under test.
            sure: try many random directions instead of few, and round the subject's own operations
                at random: the means of a scoring function, and every operation of a mechanism, of
                which only the output is known. Few directions suffice to pass a subject; use
                ``sure`` before failing it.
        """
        eps = self.eps if eps is None else eps
        draws = _SURE_DRAWS if sure else _FEW_DRAWS
        if self._is_mechanism:
            *_, widest = self._mechanism_budgets(units, eps, draws, rounded=sure)
            return widest
        log = self.log_weights
        weights, move = self.weights, units * self._score_move(eps, draws)
        # if each score moves by at most ± move, a weight stays within these bounds
        least = torch.logsumexp(log - move, -1, keepdim=True)
        most = torch.logsumexp(log + move, -1, keepdim=True)
        up = torch.exp((log + move - least).clamp_max(0.0)) - weights
        down = weights - torch.exp(log - move - most)
        up, down = (t.nan_to_num(0.0).clamp_min(0.0) for t in (up, down))
        # a weight loses only what others gain
        down = torch.minimum(down, up.sum(-1, keepdim=True) - up)
        slack = torch.maximum(up, down)
        spread = (self._value.unsqueeze(-3) - self.output.unsqueeze(-2)).abs()
        budget = (slack.unsqueeze(-2) @ spread).squeeze(-2) + self.floor(units=units, eps=eps)
        return budget + self._lost_in_sums(eps) if sure else budget

    def sure_budgets(self, *, units: float = 4.0, eps: float | None = None) -> Iterator[Tensor]:
        """Yield increasing budgets up to ``budget(sure=True)``, which is slow for a mechanism."""
        if self._is_mechanism:
            eps = self.eps if eps is None else eps
            yield from self._mechanism_budgets(units, eps, _SURE_DRAWS, rounded=True)
        else:
            yield self.budget(units=units, eps=eps, sure=True)

    def floor(self, *, units: float = 4.0, eps: float | None = None) -> Tensor:
        """The part of the budget that needs no further run; broadcasts to ``(*lead, L, Ev)``.

        It covers the rounding of values, weights and output, but not that of the scores. A fast
        exponential gives 0 for weights below the least normal number, which need not be seen.
        """
        eps = self.sum_eps(self.eps if eps is None else eps)
        if self._is_mechanism:
            sizes = (self.output.abs().amax(-1, keepdim=True), self.inputs.value.abs().amax())
            return units * (eps * torch.maximum(*(t.nan_to_num(0.0) for t in sizes)) + self.tiny)
        size = self._value.abs()
        normal = min(self.tiny / self.eps, torch.finfo(torch.float32).smallest_normal)
        flushed = max(self.tiny, normal) * size.sum(-2, keepdim=True) + self.tiny
        return units * (eps * (self.weights @ size) + flushed)

    def sum_eps(self, eps: float) -> float:
        """The allowed error of the sum over all keys, relative to the sum of absolute values.

        Rounding errors of a long sum are a random walk and grow with the square root of its length;
        half types are summed in float32.
        """
        walk = math.sqrt(self.allowed.shape[-1]) / SHORT_SUM
        return eps + _more(walk, eps)

    def product_eps(self, eps: float) -> float:
        """The same of the sum over all features."""
        walk = math.sqrt(self.inputs.query.shape[-1]) / _SHORT_PRODUCT
        return eps + _more(walk, eps)

    def _lost_in_sums(self, eps: float) -> Tensor:
        """What terms smaller than one unit of their sum lose where they are added one by one.

        All of them are rounded alike, so that their errors are no random walk.
        """
        unit = min(eps, torch.finfo(torch.float32).eps)

        def lost(terms: Tensor) -> Tensor:
            least = unit * terms.sum(-2, keepdim=True)
            return torch.minimum(terms, least / 2).masked_fill(terms >= least, 0.0).sum(-2)

        weights = self.weights.unsqueeze(-1)
        of_values = lost(weights * self._value.abs().unsqueeze(-3))
        return of_values + self.output.abs() * lost(weights)

    def score_budget(self, *, units: float = 4.0) -> Tensor:
        """The allowed error of each score, ``(*lead, L, S)``, if everything moves by ``units``.

        There are 32 draws because, with two features, the moves of a product cancel in 3 draws of
        8, and a score of exactly 0 has no other allowance.
        """
        return units * self._score_move(self.eps, 32)

    def _score_move(self, eps: float, draws: int) -> Tensor:
        """``(*lead, L, S)``: the change of each score when everything moves by one unit."""
        step = max(eps, SMALLEST_STEP)
        total = torch.zeros_like(self.scores)
        mode = RoundedMeans(step) if draws > _FEW_DRAWS else contextlib.nullcontext()
        for module, inputs in self.moved(step, draws):
            seen = self.allowed.any(-2).unsqueeze(-1)
            key = torch.where(seen, inputs.key, torch.zeros_like(inputs.key))
            bias = self.bias
            if inputs.attn_mask is not None and inputs.attn_mask.is_floating_point():
                bias = torch.where(self.allowed, inputs.attn_mask, bias)
            with mode, torch.no_grad(), NormEpsilon(self.dtype):
                total += (module(inputs.query, key) + bias - self.scores).square()
        size = torch.maximum((self.scores - self.bias).abs(), self.bias.abs())
        move = (total / draws).sqrt() * (eps / step)
        # the score itself may always be rounded, even if the changes happen to cancel
        move = torch.maximum(move, eps * size)
        # and its products may be summed in order, where partial sums are as large as the score
        move = move * (self.product_eps(eps) / eps) + self.tiny
        # a function may hide keys itself, with scores of minus infinity, which nothing moves
        return move.masked_fill(~self.allowed | self.scores.isinf(), 0.0)

    def _mechanism_budgets(
        self, units: float, eps: float, draws: int, *, rounded: bool
    ) -> Iterator[Tensor]:
        """Yield the budgets of 4 directions, of 8 and so on; none is narrower than the previous."""
        largest = [torch.zeros_like(self.output) for _ in range(2)]
        floor = self.floor(units=units, eps=eps)
        # one unit, scaled up, where the output is smooth; all units at once near a discontinuity
        steps = (max(eps, SMALLEST_STEP), units * eps)
        modes = [RoundedOperations(step) if rounded else contextlib.nullcontext() for step in steps]
        trials = zip(*(self.moved(step, draws) for step in steps), strict=True)
        for count, pairs in enumerate(trials, 1):
            for place, ((module, inputs), step) in enumerate(zip(pairs, steps, strict=True)):
                with modes[place], torch.no_grad(), NormEpsilon(self.dtype):
                    output = self.run(module, inputs)
                change = (output - self.output).abs() * (units * eps / step)
                largest[place] = torch.maximum(largest[place], change.nan_to_num(0.0))
            if count == draws or (count >= _FEW_DRAWS and count.bit_count() == 1):
                one_unit, all_units = (change.amax(-1, keepdim=True) for change in largest)
                # the output jumps, for example between tied keys, and may jump further than seen
                jumps = all_units > _JUMP * one_unit
                widest = torch.maximum(one_unit, all_units)
                yield torch.where(jumps, units * all_units, widest) + floor

    def moved(self, step: float, draws: int) -> Iterator[tuple[nn.Module, Inputs]]:
        """Yield module and inputs ``draws`` times, each element moved up or down at random."""
        generator = torch.Generator().manual_seed(0)
        steps: dict[int, Tensor] = {}

        def move(tensor: Tensor) -> Tensor:
            if id(tensor) not in steps:
                steps[id(tensor)] = _step_of(tensor, step, self.tiny)
            signs = torch.randint(2, tensor.shape, generator=generator).to(tensor.dtype)
            return torch.addcmul(tensor, signs.mul_(2).sub_(1), steps[id(tensor)])

        module = copy.deepcopy(self.module)
        state = [
            (target, source)
            for target, source in zip(
                [*module.parameters(), *module.buffers()],
                [*self.module.parameters(), *self.module.buffers()],
                strict=True,
            )
            if source.is_floating_point()
        ]
        mask = self.inputs.attn_mask
        for _ in range(draws):
            with torch.no_grad():  # not around the yield, which may be the last
                for target, source in state:
                    target.copy_(move(source))
                inputs = self.inputs.map(move)
                if mask is not None and mask.is_floating_point():
                    inputs = inputs.replace(attn_mask=move(mask))
            yield module, inputs


def expected(inputs: Inputs) -> Oracle:
    """The right output of scaled dot-product attention, ``(*lead, L, Ev)``, with its error budget.

    Masks, lengths, causality, a scale and grouped heads have their textbook meaning.
    """
    if inputs.enable_gqa:
        groups = inputs.query.shape[-3] // inputs.key.shape[-3]
        key, value = (t.repeat_interleave(groups, -3) for t in (inputs.key, inputs.value))
        inputs = inputs.replace(key=key, value=value, enable_gqa=False)
    return Oracle(TEXTBOOK, ScaledDot(inputs.scale), inputs)


def _more(walk: float, eps: float) -> float:
    """What a sum adds to ``eps`` if its errors walk so far; half types are summed in float32."""
    return max(0.0, walk - 1.0) * min(eps, torch.finfo(torch.float32).eps)


def _step_of(tensor: Tensor, step: float, tiny: float) -> Tensor:
    """The distance by which each element moves; 0 for elements that are not finite."""
    size = tensor.detach().abs().mul_(step).add_(tiny)
    return size.masked_fill_(~tensor.isfinite(), 0.0)
