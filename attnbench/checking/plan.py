"""The plan of a check: the subjects of its targets, and the invariants that run on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from attnbench.calling.adapted_specs import AdaptedSpec
from attnbench.cases.case import Case
from attnbench.checking.gaps import gaps_of
from attnbench.checking.outcomes import running_order
from attnbench.checking.profiles import PROFILES, Profile
from attnbench.errors import (
    DuplicateNameError,
    OptionError,
    StyleError,
    UnknownNameError,
    UsageError,
    check_name,
    first_line,
)
from attnbench.registry.address import ALL, Address
from attnbench.registry.catalog import BUILT_IN, registry
from attnbench.registry.discovery import Plugin, Spec
from attnbench.specs import DTYPES, Invariant
from attnbench.specs.heirs import heir
from attnbench.subject.devices import check_device
from attnbench.subject.lookup import installed, members, resolve
from attnbench.subject.subject import Subject


def select_invariants(names: Iterable[str] | None) -> list[Invariant]:
    """The registered invariants with these names; all of them for ``None``.

    Raises:
        UnknownNameError: no loaded plugin registers an invariant of a name.
    """
    by_name = {invariant.name: invariant for invariant in registry().invariants()}
    if names is None:
        return list(by_name.values())
    names = [names] if isinstance(names, str) else names
    names = list(dict.fromkeys(map(heir, names)))
    for name in names:
        check_name("invariant", name, by_name)
    return [by_name[name] for name in names]


def find_profile(name: str) -> Profile:
    """The profile of a name; raises :class:`UnknownNameError` if there is none."""
    check_name("profile", name, PROFILES)
    return PROFILES[name]


def all_targets(profile: str) -> list[Address]:
    """The sorted addresses of all installed subjects that a profile checks.

    The profile quick leaves out the variants that specs list.

    Raises:
        UnknownNameError: there is no such profile.
    """
    variants = find_profile(profile).variants
    return [subject.address for subject in installed() if variants or not subject.options]


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


def _with_user_invariants(subject: Subject, names: Iterable[str] | None) -> Subject:
    """The subject without its exemptions from those invariants on its adapter that are named."""
    spec = subject.spec
    if names is None or not isinstance(spec, AdaptedSpec):
        return subject
    asked = {*([names] if isinstance(names, str) else names)} & spec.unasked
    exempt = {name: why for name, why in spec.exempt.items() if name not in asked}
    return replace(subject, spec=replace(spec, exempt=exempt))


def plan(
    targets: Sequence[Address] | None,
    *,
    profile: str,
    device: str,
    dtypes: Sequence[str] | None,
    invariants: Sequence[str] | None,
) -> dict[str, Any]:
    """The plan of a check: subjects with their addresses, and invariants in order.

    Of a whole file, what cannot be called is left out, and told with the reason. Without
    ``targets``, ``left_out`` is the number of subjects that the profile leaves out.

    Raises:
        AttnbenchError: a name, a device or a dtype is wrong.
    """
    lines: list[str] = []
    statements: dict[str, str] = {}
    of_subject: dict[str, list[str]] = {}
    subjects: list[Subject] = []
    chosen = all_targets(profile) if targets is None else targets
    options: dict[str, Any] = {"profile": profile, "device": device, "dtypes": dtypes}
    for target in (one for each in chosen for one in _members(each, lines, **options)):
        resolved, checks = planned(target, invariants=invariants, **options)
        statements |= {invariant.name: invariant.statement for invariant in checks}
        for subject in resolved:
            named = invariants is not None
            of_subject[subject.name] = [i.name for i in checks if named or subject.kind in i.kinds]
            lines += subject.about
        subjects += resolved
    return {
        "subjects": list(dict.fromkeys((subject.address, subject.name) for subject in subjects)),
        "invariants": list(statements.items()),
        "of_subject": of_subject,
        "left_out": len(installed()) - len(chosen) if targets is None else 0,
        "about": list(dict.fromkeys(lines)),
        "gaps": [asdict(gap) for subject in subjects for gap in gaps_of(subject)],
        "laws": {subject.name: list(subject.laws) for subject in subjects},
        "explainers": [plugin.name for plugin in explaining_plugins(built_in=False)],
    }


def explaining_plugins(*, built_in: bool) -> list[Plugin]:
    """The plugins that explain failures: those of this distribution, or of others."""
    found = (plugin for plugin in registry().plugins if plugin.explain is not None)
    return [plugin for plugin in found if (plugin.distribution == BUILT_IN) == built_in]


def _members(target: Address, lines: list[str], **options: Any) -> list[Address]:
    """The targets of an address; of a whole file those that can be called.

    Args:
        target: an address.
        lines: gets a line for each class or function that is left out, with the reason.
        options: as for :func:`planned`.

    Raises:
        StyleError: nothing in the file can be called.
    """
    if target.name != ALL:
        return [target]
    found, refused, ones = [], [], members(target)
    for one in ones:
        try:
            planned(one, **options)
            found.append(one)
        except StyleError as error:
            if len(ones) == 1:
                raise
            told = first_line(str(error)).removeprefix(f"{one.name} ")
            refused.append(f"not checked: {one.name}: {told}")
    if not found:
        listed = "\n".join(f"  {line}" for line in refused)
        raise StyleError(f"nothing in {target.source} can be called as it stands:\n{listed}")
    lines += refused
    return found


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


def try_options_of(target: Address) -> None:
    """The same for the subjects of an address, in a child process."""
    try_options(resolve(target))
