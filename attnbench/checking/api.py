"""``check``: run invariants on subjects, in this process, and what a child process does of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from torch import Tensor, nn

from attnbench.calling.suite_guard import SuiteGuard
from attnbench.cases.case import Case
from attnbench.checking.answer_faults import KnownFault, known_from
from attnbench.checking.check_report import CheckReport
from attnbench.checking.explain.explaining import (
    added,
    case_of,
    leading_first,
    with_clues,
    with_own_clues,
)
from attnbench.checking.gaps import coverage_of, declarations, gaps_of
from attnbench.checking.outcomes import CANARY, CHANGED, Outcome, notes_of
from attnbench.checking.plan import explaining_plugins, find_profile, planned, try_options
from attnbench.checking.plan import select_invariants as select_invariants
from attnbench.checking.profiles import PROFILES
from attnbench.checking.runner import run_invariant, seeded, skip_reason
from attnbench.distributions import named_by_plugin
from attnbench.errors import StyleError, ending_here
from attnbench.registry.address import Address
from attnbench.registry.discovery import Spec
from attnbench.specs import Invariant, LayerSpec, MechanismSpec
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject


@ending_here
def check(
    target: str | Address | Spec | Callable[..., Any],
    *,
    style: str | None = None,
    example: Any = None,
    profile: str = "default",
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    invariants: Iterable[str] | None = None,
    seed: int | None = None,
) -> CheckReport:
    """Check a subject against every invariant that applies to it.

    Args:
        target: an address or a spec, which need not be registered; or a function, module or class.
        style: style of call of the latter, as in :mod:`attnbench.adapters`: ``"sdpa"`` ...
        example: arguments of one call of a module or function: ``(args, kwargs)``, a tuple, a dict
            by name, or one tensor. Then nothing is made, and nothing about the call is guessed:
            other calls are cut from this one, along its items and its tokens.
        profile: ``quick``, ``default`` or ``thorough``: 4, 100 or 1000 drawn cases per invariant,
            in addition to the scheduled ones.
        device: name of a torch device.
        dtypes: names of the dtypes to check; by default all that the subject supports.
        invariants: names of the invariants to run; by default all.
        seed: seed of the drawn cases; ``None`` draws the same cases every time.

    Returns:
        A report; ``report.ok`` says whether every outcome is passed or skipped.

    Raises:
        UnknownNameError: the target, the profile, a dtype or an invariant is unknown.
        StyleError: the style does not fit the target, or is missing.
        SpecError: the spec names a law or an invariant that no plugin registers.
        DeviceError: the device is not available.
    """
    guard = SuiteGuard()
    if example is not None:
        target = named_by_plugin("adapters.example_spec")(target, example)
    options: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtypes}
    subjects, selection = planned(target, style=style, invariants=invariants, **options)
    try_options(subjects)
    reports = []
    for subject in subjects:
        outcomes = explained(
            subject, list(outcomes_of(subject, selection, seed=seed, guard=guard, **options))
        )
        gaps = coverage_of(gaps_of(subject), {subject.name: subject.laws}, outcomes)
        notes = notes_of(outcomes)
        reports.append(CheckReport(tuple(outcomes), profile, seed, notes, subject.about, gaps))
    return CheckReport.joined(reports)


@ending_here
def check_calls(model: nn.Module, batch: Any, **options: Any) -> CheckReport:
    """Check each kind of attention module in a model on the calls that it gets there.

    The model runs once, in evaluation. Of each class that looks like attention, the first module
    that was called is checked, with its first call as the example.

    Args:
        model: a module.
        batch: its arguments, as ``example`` of :func:`check`.
        options: as of :func:`check`.

    Returns:
        One report of all of them; its notes name those that could not be checked, and why.

    Raises:
        StyleError: the model raises on the batch, no module that looks like attention is called, or
            none of them can be checked.
    """
    reports, refused = [], []
    example_spec = named_by_plugin("adapters.example_spec")
    for place, module, call in named_by_plugin("adapters.seen_calls")(model, batch):
        try:
            note = f"the module {place}, on its call in {type(model).__name__}"
            spec = example_spec(module, call, notes=(note,))
            reports.append(check(spec, **options))
        except StyleError as error:
            refused.append(f"not checked, {place}: {error}")
    if not reports:
        raise StyleError("\n".join(refused))
    joined = CheckReport.joined(reports)
    return replace(joined, notes=(*joined.notes, *refused))


def outcomes_of(
    subject: Subject,
    invariants: Iterable[Invariant],
    *,
    profile: str = "default",
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    seed: int | None = None,
    evidence: bool = True,
    case: Case | None = None,
    guard: SuiteGuard | None = None,
    known: KnownFault | None = None,
) -> Iterator[Outcome]:
    """The outcomes of one subject as they come.

    Once the subject's code has changed the suite, all are crashed. If the contract fails in every
    ordinary call, no other property is checked, since each would fail without adding information;
    if it fails in some calls, the others are checked on the rest. None is once an accelerator
    fails every call, as after an illegal access. Torch's global generator is restored after each.

    Args:
        subject, invariants, profile, device, dtypes, seed: as in :func:`check`.
        evidence: whether to look for the smallest counterexample, which takes many calls.
        case: the only case to run; ``None`` to look for one that fails.
        guard: what the suite was before the subject's code was imported.
        known: a fault that the contract's check has found.
    """
    guard, asked = guard or SuiteGuard(), tuple(dtypes or ())
    options: dict[str, Any] = {"device": device, "dtypes": asked or None, "seed": seed}
    options |= {"shrink": evidence, "case": case}
    consequence = ""
    for invariant in invariants:
        if consequence and skip_reason(subject, invariant) is None:
            yield Outcome(subject.name, invariant.name, "skipped", f"not run: {consequence}")
            continue
        with seeded():
            outcome = run_invariant(subject, invariant, PROFILES[profile], known=known, **options)
            change = guard.change()
            if change is not None:
                changed = CHANGED.format(change)
                outcome = Outcome(subject.name, invariant.name, "crashed", changed)
            elif outcome.failure is not None and outcome.failure.device_lost:
                consequence = f"{device} cannot be used since {invariant.name} failed"
            elif known is None:
                known = known_from(subject, outcome, device, asked)
                if known is not None and known.is_everywhere:
                    consequence = f"{invariant.name} failed, and so would this"
                elif known is not None:
                    line = f"Not looked at, {subject.name}: {known.note}"
                    outcome = replace(outcome, note="\n".join(filter(None, (outcome.note, line))))
        yield outcome


def explained(subject: Subject, outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes of a subject, one failure with a script, the first with what explains it.

    Nothing calls a subject whose device is lost.
    """
    failing = leading_first(outcomes)
    told = {outcome.invariant: outcome for outcome in outcomes}
    if failing and not any(o.failure is not None and o.failure.device_lost for o in failing):
        told |= {outcome.invariant: outcome for outcome in with_own_clues(subject, failing)}
        lead = told[failing[0].invariant]
        for text in islice(_meant(subject, failing), 1):
            told[lead.invariant] = added(lead, by_design=text)
    return [*told.values()]


def explanations_of(
    target: Address, outcomes: Sequence[Outcome], explainers: Sequence[str]
) -> Iterator[list[Outcome]]:
    """The outcomes with what attnbench says of them, and again after each plugin in turn.

    It is called in a child process, once a subject.
    """
    (subject,) = resolve(target)
    outcomes = explained(subject, outcomes)
    yield outcomes
    for plugin in explaining_plugins(built_in=False):
        if plugin.name in explainers:
            lead, *others = leading_first(outcomes)
            outcomes = [with_clues(subject, [lead, *others], plugin), *others]
            yield outcomes


def _meant(subject: Subject, failing: Sequence[Outcome]) -> Iterator[str]:
    """The conventions of the first failure with which all of them hold."""
    for text, declared in declarations(subject, failing[0].invariant):
        hold = all(_holds(declared, one, case_of(one)) for one in failing)
        if hold and _holds(declared, failing[0]):
            yield text


def _holds(subject: Subject, outcome: Outcome, case: Case | None = None) -> bool:
    """Whether what failed holds, or is not promised, of a subject with another convention."""
    (invariant,) = select_invariants([outcome.invariant])
    only, device = case and subject.legal(case), case_of(outcome).device
    with seeded():
        found = run_invariant(
            subject, invariant, PROFILES["quick"], device=device, shrink=False, case=only
        )
    return found.ok


def run_invariants(
    spec: Spec,
    names: Iterable[str] | None = None,
    *,
    profile: str = "default",
    seed: int | None = None,
) -> Iterator[Outcome]:
    """The outcomes, one by one, of a spec whose code runs in another process.

    So nothing here guards the suite against that code. No smaller counterexample is looked for.

    Args:
        spec: which need not be registered.
        names: of the invariants to run; by default all of the spec's kind.
        profile, seed: as in :func:`check`.

    Raises:
        UnknownNameError: there is no such profile or invariant.
    """
    find_profile(profile)
    (subject,) = resolve(spec)
    invariants = [one for one in select_invariants(names) if subject.kind in one.kinds]
    options: dict[str, Any] = {"profile": profile, "seed": seed, "guard": SuiteGuard(())}
    return outcomes_of(subject, invariants, evidence=False, **options)


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
    case: str | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of the subject of an address as they come, and then that of a canary.

    They end early if the device is lost.

    Args:
        target, profile, device, dtypes, invariants, seed: as in :func:`attnbench.check`.
        user_invariants: invariants that the user named.
        canary: the invariant that a canary must violate; ``None`` for no canary.
        case: id of the only case to run; ``None`` to look for one that fails.
    """
    guard = SuiteGuard()
    options: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtypes}
    (subject,), selection = planned(
        target, invariants=invariants, user_invariants=user_invariants, **options
    )
    only = None if case is None else Case.from_id(case)
    options |= {"seed": seed, "guard": guard, "case": only}
    for outcome in outcomes_of(subject, selection, **options):
        yield outcome
        if outcome.failure is not None and outcome.failure.device_lost:
            break  # another process can use it
    if canary is not None:
        yield canary_outcome(subject, canary)


def canary_outcome(subject: Subject, invariant: str) -> Outcome:
    """The outcome of an invariant on a canary of a subject's kind, which it must fail.

    It is computed as all outcomes are, and has the subject's name until then, so that a changed
    suite changes it as well.
    """
    name = subject.maker.name
    module = type(name, (nn.Module,), {"forward": _nan})
    spec = (
        LayerSpec(name=name, make=lambda size: module())
        if subject.kind == "layer"
        else MechanismSpec(name=name, make=lambda *sizes: module(), formula="", source="")
    )
    (canary,), selection = resolve(spec), select_invariants([invariant])
    canary = replace(canary, name=subject.name)
    found = next(outcomes_of(canary, selection, profile="quick", evidence=False))
    return replace(found, subject=CANARY)


def _nan(self: nn.Module, query: Tensor, *tensors: Tensor, attn_mask: Any = None) -> Tensor:
    """The output of an attention, or of a layer if called with one tensor: NaN alone."""
    value = tensors[-1] if tensors else query
    sums = query.sum() + sum(tensor.sum() for tensor in tensors)
    return query.new_full((*query.shape[:-1], value.shape[-1]), float("nan")) + sums
