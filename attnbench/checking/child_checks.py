"""Checks in a child process: the outcomes of a subject, and those of its canary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from attnbench.checking.api import outcomes_of, planned, select_invariants
from attnbench.checking.canaries import CANARY
from attnbench.checking.outcomes import Outcome
from attnbench.checking.suite_guard import SuiteGuard
from attnbench.registry.address import Address
from attnbench.specs import LayerSpec, MechanismSpec
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject


def outcomes(
    target: Address,
    *,
    profile: str,
    device: str,
    dtypes: Sequence[str] | None,
    invariants: Sequence[str],
    seed: int | None,
    asked: Sequence[str] = (),
    canary: str | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of the subject of an address as they come, and then that of a canary.

    Args:
        target, profile, device, dtypes, invariants, seed: as in :func:`attnbench.check`.
        asked: invariants that the user named.
        canary: the invariant that a canary must violate; ``None`` for no canary.
    """
    guard = SuiteGuard()
    (one,), chosen = planned(
        target, profile=profile, device=device, dtypes=dtypes, invariants=invariants, asked=asked
    )
    yield from outcomes_of(
        one, chosen, profile=profile, device=device, dtypes=dtypes, seed=seed, guard=guard
    )
    if canary is not None:
        yield canary_outcome(one, canary)


def canary_outcome(subject: Subject, invariant: str) -> Outcome:
    """The outcome of an invariant on a canary of a subject's kind, which it must fail.

    It goes the way of all outcomes, so that what was changed on that way changes it too.
    """
    spec = (
        LayerSpec(name=CANARY, make=lambda size: _Wrong())
        if subject.kind == "layer"
        else MechanismSpec(name=CANARY, make=lambda *sizes: _Wrong(), formula="", source="")
    )
    (canary,), (chosen,) = resolve(spec), select_invariants([invariant])
    return next(outcomes_of(canary, [chosen], profile="quick", evidence=False))


class _Wrong(nn.Module):
    """An attention, or a layer if it is called with one tensor, of which all outputs are NaN."""

    def forward(self, query: Tensor, *tensors: Tensor, attn_mask: Any = None) -> Tensor:
        value = tensors[-1] if tensors else query
        sums = query.sum() + sum(tensor.sum() for tensor in tensors)
        return query.new_full((*query.shape[:-1], value.shape[-1]), float("nan")) + sums
