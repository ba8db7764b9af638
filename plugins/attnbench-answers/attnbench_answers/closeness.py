"""Assertions for anybody's tests: is an output that of attention, within what its dtype permits?

The allowed error is computed for each element from the inputs, and not one number for all: it is
what moving query, key, value, mask and every score by some units in the last place may change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import fields

import torch
from torch import Tensor

from attnbench import Inputs, InvariantViolation, UsageError
from attnbench.testing import agree_within, change_by_moves, check_output, stages_of

_DRAWS = 8
"""Random directions in which :func:`assert_close` moves the inputs."""

_HUGE = 1e15
"""Beyond it, squares would overflow; of weights, no move is as large."""

SHORT_SUM = 1.6
"""Square root of the number of terms whose sum counts as a single rounding."""

SMALLEST_STEP = 2.0**-24
"""Smallest relative move; the effect of a smaller one would vanish in float64's rounding."""

_OPTIONS = [one for one in fields(Inputs) if one.name not in ("query", "key", "value", "scale")]
"""What a call may ask for beside its tensors and a scale."""


def assert_attention_close(
    actual: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    window_size: tuple[int, int] | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    causal: str = "bottom_right",
    internal_dtype: torch.dtype | None = None,
    units: float = 2.0,
) -> None:
    r"""Assert that a tensor is :math:`\mathrm{softmax}(s\, q k^\top) v`, within rounding.

    Arguments have the meaning of ``torch.nn.functional.scaled_dot_product_attention``, but for
    ``is_causal``, which is aligned to the bottom right unless ``causal`` says otherwise. A row
    without keys is zeros.

    Args:
        actual: ``(..., L, Ev)``, the output to judge, of any floating dtype and device.
        query: ``(..., L, E)``; its dtype decides how much rounding may cost.
        key: ``(..., S, E)``.
        value: ``(..., S, Ev)``.
        attn_mask: boolean (True = may attend) or floating, broadcasts to ``(..., L, S)``.
        valid_lens: ``(B,)`` or ``(B, L)``, number of keys that count.
        is_causal: whether each query sees no later key.
        scale: factor of the scores; by default ``E ** -0.5``.
        enable_gqa: whether the heads of key and value divide those of the query.
        window_size: ``(before, after)``, -1 for no limit, around each query's position.
        softcap: a score x becomes ``softcap * tanh(x / softcap)``.
        sinks: ``(H,)``, score of an extra key per head, whose value is zero.
        alibi_slopes: ``(H,)``, decrease of a score per step of distance.
        causal: ``"bottom_right"`` or ``"top_left"``, where L and S differ.
        internal_dtype: dtype in which it computes, if that is narrower than the query's.
        units: units in the last place by which each value and score may move; rounding moves each
            by half a unit, and several steps round it.

    Raises:
        InvariantViolation: an ``AssertionError`` that names the worst element, the value that it
            should have, and the error as a multiple of the allowed one.
        ShapeError, DtypeError, DeviceError, MaskError: the tensors do not fit each other.
    """
    check_output(actual, query, key, value, attn_mask, grouped=enable_gqa)
    inputs = Inputs(
        query.detach(),
        key.detach(),
        value.detach(),
        attn_mask=attn_mask,
        valid_lens=valid_lens,
        is_causal=is_causal,
        enable_gqa=enable_gqa,
        scale=scale,
        causal=causal,
        window_size=window_size,
        softcap=softcap,
        sinks=sinks,
        alibi_slopes=alibi_slopes,
    )
    with torch.no_grad():
        right = Expected(inputs, internal_dtype=internal_dtype, units=units)
        if right.explains(actual.detach().cpu() - right.output):
            return
        try:
            agree_within(actual, right.output, right.budget(), "output", "attention in float64")
        except InvariantViolation as violation:
            message, own = str(violation), actual.dtype
            if torch.finfo(own).eps > torch.finfo(query.dtype).eps and internal_dtype is None:
                message += (
                    f"\n  actual is {own}, and query {query.dtype}: pass the inputs that the "
                    f"function got, or internal_dtype={own}"
                )
            raise violation.reworded(message) from None


class Expected:
    """The output of scaled dot-product attention in float64, and what rounding may cost it.

    Rounding errors of scores, weights and values are taken as independent, so that their squares
    add up, and a sum of many terms gains by them as a random walk does.

    Args:
        inputs: the inputs, in the dtype under test.
        internal_dtype: dtype in which the subject computes, if narrower than the query's.
        units: units in the last place by which each value may move. Rounding moves it by half a
            unit at most.

    Attributes:
        output: ``(*lead, L, Ev)`` in float64 on the CPU.
    """

    def __init__(
        self,
        inputs: Inputs,
        *,
        internal_dtype: torch.dtype | None = None,
        units: float = 2.0,
    ) -> None:
        dtypes = [t for t in (inputs.query.dtype, internal_dtype) if t is not None]
        self._inputs, self._units = inputs, units
        self._eps = max(torch.finfo(dtype).eps for dtype in dtypes)
        if self._eps == torch.finfo(torch.float64).eps:
            self._eps *= 2  # no reference is wider, and this one rounds as well
        self._sum_eps = min(self._eps, torch.finfo(torch.float32).eps)
        tiny = torch.finfo(inputs.query.dtype).smallest_normal * self._eps
        self._tiny = max(tiny, torch.finfo(torch.float64).smallest_normal)  # those below are slow
        self._scores, self._bias, self._weights, self._value = _stages(inputs)
        self._rounding = units * (self._eps + self._walk(self._value.shape[-2]))
        self.output = self._weights @ self._value

    def explains(self, errors: Tensor) -> bool:
        """Whether rounding of the weights and the output alone, as is usual, explains errors."""
        if not errors.numel():
            return True
        squares = self._shifts(self._weights.square()).double().addcmul_(self.output, self.output)
        # less, since a square that underflows is zero
        return float((errors.square() - squares.mul_(self._rounding**2)).amax()) < 0

    def budget(self) -> Tensor:
        """The allowed error ``(*lead, L, Ev)``, for which scores move, too."""
        weights = self._weights
        eps = self._eps + self._walk(self._inputs.query.shape[-1])
        slack = _weight_slack(weights, self._units * self._score_move(eps) + self._tiny)
        by_moves = slack.div_(self._rounding).add_(weights)
        by_sizes = self._scores.abs().mul_(eps * self._units / self._rounding).add_(1.0)
        moves = (move.clamp_max_(_HUGE).square_() for move in (by_moves, by_sizes.mul_(weights)))
        shift = torch.maximum(*map(self._shifts, moves)).clamp_min_(0.0).sqrt_().double()
        # once for the output, and once for the sum of its weights
        own = torch.linalg.vector_norm(weights, dim=-1, keepdim=True).add_(1.0)
        least = self._value.abs().sum(-2, keepdim=True).add_(1.0).mul_(self._units * self._tiny)
        return shift.add_(self.output.abs().mul_(own)).mul_(self._rounding).add_(least)

    def _shifts(self, squares: Tensor) -> Tensor:
        """Squares of what moves of the weights, given by their squares, change the output by."""
        value, output = self._value, self.output
        # Σ move² (value - output)², without a tensor (L, S, Ev)
        terms = torch.cat([value.square(), value, torch.ones_like(value[..., :1])], -1)
        square, plain, count = (squares @ terms).split_with_sizes([*2 * value.shape[-1:], 1], -1)
        return square.addcmul_(output, plain, value=-2.0).addcmul_(output * count, output)

    def _walk(self, count: int) -> float:
        """A unit of exponentials and of sums of so many terms; half types take float32."""
        return self._sum_eps * max(1.0, math.sqrt(count) / SHORT_SUM)

    def _score_move(self, eps: float) -> Tensor:
        """What one unit in the last place changes each score by, ``(*lead, L, S)``."""
        inputs = self._inputs
        query, key = (t.detach().cpu().double().square() for t in (inputs.query, inputs.key))
        key = torch.where(key.isfinite(), key, 0.0)
        if inputs.enable_gqa:
            key = key.repeat_interleave(query.shape[-3] // key.shape[-3], dim=-3)
        move = (query @ key.mT).mul_(2.0).sqrt_().mul_(abs(_scale_of(inputs)))
        move = torch.maximum(move, self._scores.abs()).mul_(eps)
        if self._bias is not None:
            move.add_(self._bias.abs(), alpha=self._eps)  # the sum is rounded too
        # blocks of keys are weighed by log-sum-exps, larger than scores by up to this
        return move.add_(self._sum_eps * math.log(max(1, key.shape[-2])))


def _stages(inputs: Inputs) -> tuple[Tensor, Tensor | None, Tensor, Tensor]:
    """Scores, bias, weights and value; a call without options takes the short way."""
    if all(getattr(inputs, one.name) is one.default for one in _OPTIONS):
        query, key, value = (
            t.to("cpu", torch.float64) for t in (inputs.query, inputs.key, inputs.value)
        )
        scores = (query * _scale_of(inputs)) @ key.mT
        return scores, None, scores.softmax(-1), value
    stages = stages_of(inputs)
    return stages.scores, stages.bias, stages.weights, stages.finite_value


def _weight_slack(weights: Tensor, move: Tensor) -> Tensor:
    """The most by which each weight changes if no score moves by more than its ``move``."""
    grown = move.clamp_max_(300.0).exp_()
    up, down = weights * grown, weights / grown
    rest = (1.0 - weights.sum(-1, keepdim=True)).clamp_min_(0.0)  # the weight of a sink
    least, most = (t.sum(-1, keepdim=True).add_(rest).clamp_min_(1e-300) for t in (down, up))
    up = up.div_(least).clamp_max_(1.0).sub_(weights)
    return torch.maximum(up, weights - down.div_(most), out=up).clamp_min_(0.0)


def assert_close(
    actual: Tensor,
    expected: Callable[..., Tensor],
    inputs: Sequence[Tensor],
    *,
    units: float = 4.0,
) -> None:
    """Assert that a tensor is what a function gives in float64, within rounding.

    The function is called on the inputs in float64, and again with each element of the inputs moved
    by one unit in the last place of the coarsest dtype among them and ``actual``: what this changes
    is what rounding may cost.

    Args:
        actual: the tensor to judge, of any floating dtype and device.
        expected: a function of the inputs that computes it; it is run in float64 on the CPU.
        inputs: the arguments of the function; those that are not floating are passed as they are.
        units: units in the last place by which inputs may move.

    Raises:
        InvariantViolation: an ``AssertionError`` that names the worst element, the value that it
            should have, and the error as a multiple of the allowed one.
        ShapeError: ``expected`` gives another shape.
        UsageError: ``expected`` is no function.
    """
    if not callable(expected):
        raise UsageError(
            f"expected is a {type(expected).__name__}, but should be a function of the inputs, "
            "which is run on them in float64."
        )
    eps = max(torch.finfo(t.dtype).eps for t in (actual, *inputs) if t.is_floating_point())
    tiny = torch.finfo(actual.dtype).smallest_normal * eps
    step = max(eps, SMALLEST_STEP)
    wide = [t.detach().cpu().double() if t.is_floating_point() else t.cpu() for t in inputs]

    def run(move: Callable[[Tensor], Tensor]) -> Tensor:
        return expected(*(move(t) if t.is_floating_point() else t for t in wide))

    with torch.no_grad():
        right = expected(*wide)
        change = change_by_moves(run, right, [step] * _DRAWS)
    if change.dim():  # an element may owe what its neighbours show
        change = change.amax(-1, keepdim=True).expand(change.shape)
    floor = eps * right.abs().nan_to_num(0.0, 0.0, 0.0) + tiny
    agree_within(
        actual, right, units * (change * (eps / step) + floor), "actual", "the float64 run"
    )


def _scale_of(inputs: Inputs) -> float:
    return inputs.query.shape[-1] ** -0.5 if inputs.scale is None else inputs.scale
