"""What a check asks of child processes: its plan, outcomes, and those of canaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from torch import Tensor, nn

from attnbench.checking import api
from attnbench.checking.api import outcomes_of, planned, select_invariants
from attnbench.checking.canaries import CANARY
from attnbench.checking.coverage import gaps_of
from attnbench.checking.outcomes import Outcome
from attnbench.checking.suite_guard import SuiteGuard
from attnbench.registry.address import Address
from attnbench.specs import LayerSpec, MechanismSpec
from attnbench.subject.lookup import resolve, subjects
from attnbench.subject.subject import Subject


def plan(
    targets: Sequence[Address] | None,
    *,
    profile: str,
    device: str,
    dtypes: Sequence[str] | None,
    invariants: Sequence[str] | None,
) -> dict[str, Any]:
    """The plan of a check: subjects with their addresses, and invariants in order.

    Without ``targets``, ``left_out`` is the number of subjects that the profile leaves out.

    Raises:
        AttnbenchError: a name, a device or a dtype is wrong.
    """
    gaps: list[dict[str, Any]] = []
    laws: dict[str, list[str]] = {}
    pairs: list[tuple[Address, str]] = []
    statements: dict[str, str] = {}
    of_subject: dict[str, list[str]] = {}
    lines: list[str] = []
    is_complete = targets is None
    targets = api.all_targets(profile) if targets is None else targets
    for target in targets:
        resolved, checks = planned(
            target, profile=profile, device=device, dtypes=dtypes, invariants=invariants
        )
        statements |= {invariant.name: invariant.statement for invariant in checks}
        for subject in resolved:
            pairs.append((subject.address, subject.name))
            named = invariants is not None
            of_subject[subject.name] = [i.name for i in checks if named or subject.kind in i.kinds]
            lines += subject.about
            gaps += [asdict(gap) for gap in gaps_of(subject)]
            laws[subject.name] = list(subject.laws)
    return {
        "subjects": list(dict.fromkeys(pairs)),
        "invariants": list(statements.items()),
        "of_subject": of_subject,
        "left_out": len(subjects()) - len(targets) if is_complete else 0,
        "about": list(dict.fromkeys(lines)),
        "gaps": gaps,
        "laws": laws,
    }


def try_options(target: Address) -> None:
    """Build the subjects of an address, so that an option with a wrong value raises.

    Raises:
        AttnbenchError: an option is wrong.
    """
    api.try_options(resolve(target))


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
