"""``check``: run invariants on subjects, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from attnbench.cases.case import Case
from attnbench.checking.answer_faults import unusable
from attnbench.checking.canaries import CHANGED
from attnbench.checking.cause.likely_cause import with_cause
from attnbench.checking.check_report import CheckReport
from attnbench.checking.coverage import coverage_of, gaps_of
from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome, notes_of, running_order
from attnbench.checking.profiles import PROFILES, Profile
from attnbench.checking.reproduction.script import with_evidence
from attnbench.checking.runner import run_invariant, seeded, skip_reason
from attnbench.checking.suite_guard import SuiteGuard
from attnbench.errors import (
    DuplicateNameError,
    OptionError,
    UnknownNameError,
    UsageError,
    check_name,
)
from attnbench.registry.address import Address
from attnbench.registry.catalog import registry
from attnbench.registry.discovery import Spec
from attnbench.specs import DTYPES, Invariant
from attnbench.subject.devices import check_device
from attnbench.subject.lookup import installed, resolve
from attnbench.subject.styles.callee import AdaptedSpec
from attnbench.subject.subject import Subject


def select_invariants(names: Iterable[str] | None) -> list[Invariant]:
    """The registered invariants with these names; all of them for ``None``.

    Raises:
        UnknownNameError: no loaded plugin registers an invariant of a name.
    """
    by_name = {invariant.name: invariant for invariant in registry().invariants()}
    if names is None:
        return list(by_name.values())
    names = [names] if isinstance(names, str) else list(names)
    for name in names:
        check_name("invariant", name, by_name)
    return [by_name[name] for name in names]


def all_targets(profile: str) -> list[Address]:
    """The sorted addresses of all installed subjects that a profile checks.

    The profile quick leaves out the variants that specs list.

    Raises:
        UnknownNameError: there is no such profile.
    """
    variants = find_profile(profile).variants
    return [subject.address for subject in installed() if variants or not subject.options]


def check(
    target: str | Address | Spec | Callable[..., Any],
    *,
    style: str | None = None,
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
    options: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtypes}
    subjects, selection = planned(target, style=style, invariants=invariants, **options)
    try_options(subjects)
    reports = []
    for subject in subjects:
        outcomes = with_cause(outcomes_of(subject, selection, seed=seed, guard=guard, **options))
        gaps = coverage_of(gaps_of(subject), {subject.name: subject.laws}, outcomes)
        notes = notes_of(outcomes)
        reports.append(CheckReport(outcomes, profile, seed, notes, subject.about, gaps))
    return CheckReport.joined(reports)


def try_options(subjects: Iterable[Subject]) -> None:
    """Build the subjects that have options once, so that wrong options raise before the check.

    Any other exception of ``make`` is left to the check.

    Raises:
        OptionError, UnknownNameError, DuplicateNameError, UsageError: an option is wrong.
    """
    for subject in subjects:
        if not subject.options:
            continue
        try:
            with torch.random.fork_rng(devices=[]):
                subject.build(subject.legal(Case()))
        except Exception as error:
            cause = error.__cause__ or error  # a layer's make wraps what was raised in it
            if isinstance(cause, OptionError | UnknownNameError | DuplicateNameError | UsageError):
                raise type(cause)(f"{subject.name}: {cause}") from None


def planned(
    target: str | Address | Spec | Callable[..., Any],
    *,
    style: str | None = None,
    profile: str = "default",
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    invariants: Iterable[str] | None = None,
    user_invariants: Sequence[str] | None = None,
) -> tuple[list[Subject], list[Invariant]]:
    """The subjects of a target, and the invariants in the order of execution.

    Invariants that test an adapter run only if named in ``invariants`` or ``user_invariants``.

    Raises:
        UnknownNameError, SpecError, DeviceError, UsageError: as :func:`check`.
    """
    find_profile(profile)
    for name in dtypes or ():
        check_name("dtype", name, DTYPES)
    check_device(device)
    selection = sorted(select_invariants(invariants), key=lambda i: running_order(i.name))
    names = invariants if user_invariants is None else user_invariants
    subjects = [_with_user_invariants(subject, names) for subject in resolve(target, style)]
    if invariants is None:
        kinds = {subject.kind for subject in subjects}
        selection = [i for i in selection if kinds & set(i.kinds)]
    for subject in subjects:
        excused = isinstance(target, str | Address) and subject.address.source is None
        registry().validate(subject.spec, excused=excused)
        if dtypes is not None and not set(dtypes) & set(subject.dtypes):
            raise UsageError(
                f"{subject.name} supports {', '.join(subject.dtypes)}, none of "
                f"{', '.join(dtypes)}: dtypes= of its spec, or of the adapter, says so."
            )
    return subjects, selection


def _with_user_invariants(subject: Subject, invariants: Iterable[str] | None) -> Subject:
    """The subject without its exemptions from those invariants on its adapter that are named."""
    spec = subject.spec
    if invariants is None or not isinstance(spec, AdaptedSpec):
        return subject
    names = {invariants} if isinstance(invariants, str) else set(invariants)
    exempt = {name: why for name, why in spec.exempt.items() if name not in names & spec.unasked}
    return replace(subject, spec=replace(spec, exempt=exempt))


def find_profile(name: str) -> Profile:
    """The profile of a name; raises :class:`UnknownNameError` if there is none."""
    check_name("profile", name, PROFILES)
    return PROFILES[name]


def outcomes_of(
    subject: Subject,
    invariants: Iterable[Invariant],
    *,
    profile: str = "default",
    device: str = "cpu",
    dtypes: Sequence[str] | None = None,
    seed: int | None = None,
    evidence: bool = True,
    guard: SuiteGuard | None = None,
) -> Iterator[Outcome]:
    """Yield the outcomes of one subject as they come, the first failure with evidence.

    Once the subject's code has changed the suite, all are crashed. If the contract fails in a way
    that spoils every call, no other property is checked, since each would fail without adding
    information; nor is any once an accelerator fails every call, as after an illegal access.
    Torch's global generator is restored after each.

    Args:
        subject, invariants, profile, device, dtypes, seed: as in :func:`check`.
        evidence: whether to look for the smallest counterexample, and for a script that reproduces
            it, which takes many calls.
        guard: what the suite was before the subject's code was imported.
    """
    invariants = list(invariants)
    options: dict[str, Any] = {
        "profile": PROFILES[profile],
        "device": device,
        "dtypes": None if dtypes is None else tuple(dtypes),
        "seed": seed,
        "shrink": evidence,
    }
    outcomes = _outcomes(subject, invariants, options, guard or SuiteGuard())
    return with_evidence(outcomes, subject, invariants) if evidence else outcomes


def spoils_all(
    subject: Subject, outcome: Outcome, device: str = "cpu", dtypes: tuple[str, ...] = ()
) -> bool:
    """Whether the contract failed so that other properties add nothing.

    True if a call raised or the failure names its cause. NaN may come from some values only, so
    that the other properties run if an ordinary call gives none.
    """
    failure = outcome.failure
    if failure is None:
        return False
    is_named = failure.named is not None and failure.named != "half_precision"
    return bool(failure.raised or is_named or unusable(subject, device, dtypes))


def _outcomes(
    subject: Subject, invariants: Iterable[Invariant], options: dict[str, Any], guard: SuiteGuard
) -> Iterator[Outcome]:
    consequence: str | None = None
    for invariant in invariants:
        if consequence is not None and skip_reason(subject, invariant) is None:
            yield Outcome(subject.name, invariant.name, "skipped", consequence)
            continue
        with seeded():
            outcome = run_invariant(subject, invariant, **options)
            change = guard.change()
            if change is None:
                consequence = consequence or _consequence(subject, outcome, options)
        if change is not None:
            outcome = Outcome(subject.name, invariant.name, "crashed", CHANGED.format(change))
        yield outcome


def _consequence(subject: Subject, outcome: Outcome, options: dict[str, Any]) -> str | None:
    """The reason why nothing else is run after an outcome; ``None`` if there is none."""
    if outcome.failure is not None and outcome.failure.device_lost:
        return f"not run: {options['device']} cannot be used since {outcome.invariant} failed"
    given = options["device"], options["dtypes"] or ()
    if outcome.invariant == KEEPS_CONTRACT and spoils_all(subject, outcome, *given):
        return f"not run: {KEEPS_CONTRACT} failed, and so would this"
    return None
