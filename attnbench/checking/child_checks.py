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
    user_invariants: Sequence[str] = (),
    canary: str | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of the subject of an address as they come, and then that of a canary.

    They end early if the device is lost.

    Args:
        target, profile, device, dtypes, invariants, seed: as in :func:`attnbench.check`.
        user_invariants: invariants that the user named.
        canary: the invariant that a canary must violate; ``None`` for no canary.
    """
    guard = SuiteGuard()
    options: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtypes}
    (subject,), selection = planned(
        target, invariants=invariants, user_invariants=user_invariants, **options
    )
    for outcome in outcomes_of(subject, selection, seed=seed, guard=guard, **options):
        yield outcome
        if outcome.failure is not None and outcome.failure.device_lost:
            break  # another process can use it
    if canary is not None:
        yield canary_outcome(subject, canary)


def canary_outcome(subject: Subject, invariant: str) -> Outcome:
    """The outcome of an invariant on a canary of a subject's kind, which it must fail.

    It is computed as all outcomes are, so that a changed suite changes it as well.
    """
    spec = (
        LayerSpec(name=CANARY, make=lambda size: _NanModule())
        if subject.kind == "layer"
        else MechanismSpec(name=CANARY, make=lambda *sizes: _NanModule(), formula="", source="")
    )
    (canary,), selection = resolve(spec), select_invariants([invariant])
    return next(outcomes_of(canary, selection, profile="quick", evidence=False))


class _NanModule(nn.Module):
    """An attention, or a layer if called with one tensor, whose outputs are all NaN."""

    def forward(self, query: Tensor, *tensors: Tensor, attn_mask: Any = None) -> Tensor:
        value = tensors[-1] if tensors else query
        sums = query.sum() + sum(tensor.sum() for tensor in tensors)
        return query.new_full((*query.shape[:-1], value.shape[-1]), float("nan")) + sums
