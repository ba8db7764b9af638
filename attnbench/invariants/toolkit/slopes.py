"""Gradients as slopes, compared with finite differences in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.applicability import (
    any_of,
    has_no_gradients,
    not_exempt,
    supports,
)
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, differentiate, reject
from attnbench.subject.tensors import Inputs

_STEP, _FINER, _OTHERS = 1e-5, 1e-6, (1e-4, 1e-7)
"""Steps of finite differences; if one disagrees, the next is tried, and the last is the finest."""


def gradients_of(total: Tensor, named: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """The gradients of a number by named leaves; raises if the number has no graph."""
    if not total.requires_grad:
        raise InvariantViolation(
            "output.requires_grad = False, but should be True, as value.requires_grad is: "
            "the output is cut off from the graph"
        )
    found = differentiate(total, list(named.values()))
    return dict(zip(named, found, strict=True))


_FEW_PARAMETERS = 3
"""Most parameters whose names are told one by one."""

_MOST_LEAVES = 12
"""Most leaves of which the right ones are named beside the wrong."""


def compare_slopes(
    base: Baseline,
    inputs: Inputs,
    named: dict[str, Tensor],
    prefix: str = "",
    output: str = "output",
) -> None:
    """Compare gradients by leaves of the inputs with finite differences.

    Args:
        base: baseline that runs the inputs deterministically.
        inputs: inputs with the leaves.
        named: leaves by name.
        prefix: remark on the call, at the start of the failure's text.
        output: name of the output in the failure's text.
    """
    weight = torch.randn(base.output.shape, generator=base.generator, dtype=torch.float64)
    weight = weight.to(base.output)
    total = (base.run(inputs) * weight).sum()
    gradients = gradients_of(total, named)
    ways = {
        name: torch.randn(leaf.shape, generator=base.generator, dtype=torch.float64).to(leaf)
        for name, leaf in named.items()
    }
    declared = base.subject.conventions.internal_dtype not in (None, "float64")
    if declared or _is_noisy(base, inputs, named, ways, weight):
        _compare_coarsely(base, inputs, named, gradients, ways, weight, f"{prefix}{output}")
        return
    along = {
        name: (torch.zeros_like(ways[name]) if gradient is None else gradient * ways[name]).sum()
        for name, gradient in gradients.items()
    }
    moves = {name: (named[name], ways[name]) for name in named}
    together = _Slope(base, inputs, list(moves.values()), weight, total.detach())
    if together.is_near(sum(along.values(), start=torch.zeros_like(total.detach()))):
        return
    rough, differing = False, dict[str, tuple[Tensor, Tensor] | None]()
    for name, move in moves.items():  # to find the wrong ones
        slope = _Slope(base, inputs, [move], weight, total.detach())
        finer = None if slope.is_near(along[name]) else slope.settled(along[name])
        if finer is not None:  # at a tie alone a gradient may be of another branch
            beside = _gradient_beside(base, inputs, name, move, _STEP, weight)
            if slope.is_near(finer.new_tensor(beside), finer):
                finer, slope.is_rough = None, True
        rough |= slope.is_rough
        differing[name] = None if finer is None else (along[name], finer)
    _raise_at_wrong_ones(base, gradients, differing, f"{prefix}the slope of ({output} * g).sum()")
    if rough:
        reject("it is not smooth here: no slope is that of smaller steps, or of both sides")


class _Slope:
    """The slope of a weighted output along some moves, by finite differences."""

    def __init__(
        self,
        base: Baseline,
        inputs: Inputs,
        moves: list[tuple[Tensor, Tensor]],
        weight: Tensor,
        total: Tensor,
    ) -> None:
        self._base, self._inputs, self._moves = base, inputs, moves
        self._weight, self._total = weight, total
        self.first, self._bend = self._at(_STEP)
        self.is_rough = False

    def _at(self, step: float) -> tuple[Tensor, Tensor]:
        """The central difference, and the difference between its two one-sided slopes."""
        up, down = _ends(self._base, self._inputs, self._moves, step, self._weight)
        return (up - down) / (2 * step), (up + down - 2 * self._total) / step

    def is_near(self, got: Tensor, slope: Tensor | None = None) -> bool:
        """Whether a slope by a gradient is another one, by default that of the usual step."""
        slope = self.first if slope is None else slope
        return abs(float(got - slope)) <= _slack(slope, self._base)

    def settled(self, got: Tensor) -> Tensor | None:
        """The slope of a finer step; ``None`` where some step agrees, or slopes do not settle."""
        finer, less_bend = self._at(_FINER)
        # the error of a difference is quadratic in its step; two steps cancel it
        if any(self.is_near(got, one) for one in (finer, (100 * finer - self.first) / 99)):
            return None
        others = [self._at(step)[0] for step in _OTHERS]
        if any(self.is_near(got, one) for one in others):
            return None
        off = abs(float(got - finer))
        # with a kink or a jump within the step, slopes do not converge, or differ on both sides
        kink = abs(float(less_bend)) > max(off, abs(float(self._bend))) / 4
        unsettled = any(abs(float(finer - one)) > off / 4 for one in (self.first, others[-1]))
        self.is_rough = kink or unsettled
        return None if self.is_rough else finer


def listed_leaves(names: list[str]) -> str:
    """The names of inputs and parameters, those of many parameters by what they have in common."""
    parameters = [n.removeprefix("parameter ") for n in names if n.startswith("parameter ")]
    if len(parameters) <= _FEW_PARAMETERS:
        return " and ".join(names)
    first, *_, last = parameters
    inputs = [name for name in names if not name.startswith("parameter ")]
    return " and ".join([*inputs, f"{len(parameters)} parameters ({first} to {last})"])


def _raise_at_wrong_ones(
    base: Baseline,
    gradients: dict[str, Tensor | None],
    differing: dict[str, tuple[Tensor, Tensor] | None],
    slopes: str,
) -> None:
    """Raise if slopes differ, with the names of the wrong leaves and the right ones."""
    right = ", ".join(name for name, pair in differing.items() if pair is None)
    names = listed_leaves([name for name, pair in differing.items() if pair is not None])
    beside = f"\n  right by {right}" if right and len(differing) <= _MOST_LEAVES else ""
    for name, pair in differing.items():
        if pair is not None:
            lacking = "" if gradients[name] is not None else ", and no gradient reaches it"
            why = f"the first is by its gradient, the second by finite differences{lacking}{beside}"
            what = f"{slopes} along a random direction of {names}"
            agree_within(*pair, _slack(pair[1], base), what, None, why=why)


_TINY = (2.0**-18, 2.0**-21)
"""Moves of a few float32 roundings, which a run that rounds to float32 follows in jumps."""

_FALLS = 64.0
"""A third difference that falls more from one to the other is of a sharp bend; then it is 512."""

_COARSE, _SHARE = 2.0**-6, 2.0**-4
"""Step for a run with the accuracy of float32, and the allowed relative error of its slope."""


def _is_noisy(
    base: Baseline,
    inputs: Inputs,
    named: dict[str, Tensor],
    ways: dict[str, Tensor],
    weight: Tensor,
) -> bool:
    """Whether the output follows small moves in jumps, as a run that rounds to float32 does.

    Finite differences of such a run are noise divided by a small step. All leaves are moved to one
    side only, so that a kink at the inputs themselves, such as a tie, does not count.
    """
    kept = {name: leaf.detach().clone() for name, leaf in named.items()}

    def third(step: float) -> float:
        """The third difference; for a smooth run it is as small as the cube of the step."""
        values = []
        with torch.no_grad():
            for number in range(4):
                for name, leaf in named.items() if number else ():
                    leaf.add_(ways[name], alpha=step)
                values.append(float((base.run(inputs).double() * weight).sum()))
            for name, leaf in named.items():
                leaf.copy_(kept[name])
        return abs(values[3] - 3 * values[2] + 3 * values[1] - values[0])

    long, short = map(third, _TINY)
    if long > _FALLS * short > 0.0:
        return False
    return max(long, short) > 2.0**-40 * max(1.0, float(weight.abs().sum()))


def _compare_coarsely(
    base: Baseline,
    inputs: Inputs,
    named: dict[str, Tensor],
    gradients: dict[str, Tensor | None],
    ways: dict[str, Tensor],
    weight: Tensor,
    output: str,
) -> None:
    """Compare gradients of a run in float32 with slopes over steps that such a run resolves."""
    for name, leaf in named.items():
        moves = [(leaf, ways[name] / ways[name].norm().clamp_min(1.0))]
        slopes = []
        for step in (_COARSE, _COARSE / 2):
            up, down = _ends(base, inputs, moves, step, weight)
            slopes.append((up - down) / (2 * step))
        gradient = gradients[name]
        got = torch.zeros_like(slopes[0])
        if gradient is not None:
            got = (gradient * moves[0][1]).sum()
        slack = _SHARE * max(1.0, *(abs(float(slope)) for slope in slopes))
        if abs(float(slopes[0] - slopes[1])) > slack / 4:
            reject("finite differences do not settle")
        if abs(float(got - slopes[1])) > slack:
            beside = _gradient_beside(base, inputs, name, moves[0], _COARSE / 2, weight)
            if abs(beside - float(slopes[1])) <= slack:  # there is a kink close to the inputs
                reject("it is not smooth here: a little beside, its gradient is that of its slope")
        what = f"the slope of ({output} * g).sum() along a random direction of {name}"
        why = "the first is by its gradient, the second by differences, of a run in float32"
        agree_within(got, slopes[1], slack, what, None, why=why)


def _gradient_beside(
    base: Baseline,
    inputs: Inputs,
    name: str,
    move: tuple[Tensor, Tensor],
    step: float,
    weight: Tensor,
) -> float:
    """The mean of the slopes by gradients at both ends of a move."""
    leaf, way = move
    kept, slopes = leaf.detach().clone(), []
    for sign in (step, -step):
        with torch.no_grad():
            leaf.copy_(kept + sign * way)
        gradient = gradients_of((base.run(inputs) * weight).sum(), {name: leaf})[name]
        slopes.append(0.0 if gradient is None else float((gradient * way).sum()))
    with torch.no_grad():
        leaf.copy_(kept)
    return sum(slopes) / 2


def _slack(slope: Tensor, base: Baseline) -> float:
    """The allowed difference of two slopes: small, so that an internal sum in float32 is found."""
    # sums of many terms are steep, and the factor of dropout may be in float32
    rough = max(base.case.q_len, base.case.kv_len) > 17 or base.module.training
    return (1e-5 if rough else 2e-8) * max(1.0, abs(float(slope)))


def _ends(
    base: Baseline,
    inputs: Inputs,
    moves: list[tuple[Tensor, Tensor]],
    step: float,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """The weighted output with all leaves moved by a step in both directions."""
    ends = []
    with torch.no_grad():
        for sign in (step, -step):
            for leaf, way in moves:
                leaf += sign * way
            ends.append((base.run(inputs) * weight).sum())
            for leaf, way in moves:
                leaf -= sign * way
    return ends[0], ends[1]


has_slopes = any_of(has_no_gradients, not_exempt("gradients_are_right"), supports("float64"))
"""The reason why slopes are not checked, if ``gradients_are_right`` does not apply either."""
