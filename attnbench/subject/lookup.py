"""Lookup of subjects by address or spec: installed ones, and those of files and modules."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import ModuleType
from typing import Any

from packaging.utils import canonicalize_name
from torch import nn

from attnbench._signing import check_options
from attnbench.calling import CALLED
from attnbench.calling.adapted_specs import LAYOUTS, adapted, known_style
from attnbench.calling.importing import candidates, load, notes_of
from attnbench.distributions import named_by_plugin
from attnbench.errors import (
    AddressError,
    OptionError,
    StyleError,
    UnknownNameError,
    UsageError,
    ending_here,
    nearest,
)
from attnbench.registry.address import ALL, Address, format_options, parse_address
from attnbench.registry.catalog import Registry, registry, spec_key
from attnbench.registry.discovery import Spec
from attnbench.specs import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec
from attnbench.subject.layer import LayerSubject
from attnbench.subject.mechanism_subject import MechanismSubject
from attnbench.subject.scoring_subject import KernelSubject, ScoringSubject
from attnbench.subject.subject import Subject

_SPECS = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


@ending_here
def get(name: str) -> Spec:
    """Look up an installed spec by ``name``, ``scoring/kernel`` or ``distribution:name``.

    ``with KEY=VALUE`` behind it replaces conventions of the spec.

    Raises:
        UnknownNameError: no loaded plugin registers it; the message suggests the nearest names.
        DuplicateNameError: several plugins register it.
        AddressError: it has options, which are no part of a spec.
        StyleError: it names a style of call; a spec has its own.
    """
    address = parse_address(name)
    if address.options:
        raise AddressError(f"{name!r} has options, but a spec has none; leave them out.")
    return _installed_spec(address)


def subjects() -> list[str]:
    """The addresses of all installed subjects, sorted, including variants that specs list."""
    return [subject.name for subject in installed()]


def installed(source: Registry | None = None) -> list[Subject]:
    """Every installed subject, sorted by address."""
    source = source or registry()
    entries = []
    for address, spec, _ in source.specs():
        if isinstance(spec, KernelSpec) and spec.scoring not in source.scoring_names:
            continue  # the plugin of its scoring function is blocked or failed
        variants = () if isinstance(spec, KernelSpec) else spec.variants
        for options in ({}, *variants):
            entries.append(_subject(spec, replace(address, options=options)))
    return sorted(entries, key=lambda subject: subject.name)


def resolve(target: Any, style: str | None = None) -> list[Subject]:
    """Find the subjects of an address or a spec; a file's attribute may give several.

    Args:
        target: an address, parsed or as text, a spec, or a callable that a style of call can adapt.
        style: style of call of a target that is not a spec; an address may include it.

    Raises:
        UnknownNameError, DuplicateNameError, AddressError, OptionError: the address matches nothing
            or is ambiguous, or an option is unknown.
        StyleError: the target is not a spec, and the style does not fit or is missing.
    """
    if isinstance(target, str):
        target = parse_address(target)
    if isinstance(target, Address):
        address = target.called(style, {})
        if address.name == ALL:
            return [subject for one in members(address) for subject in resolve(one)]
        if address.source is None or _is_distribution(address):
            return [_subject(_settled(_installed_spec(address)), address)]
        return _of_attribute(address)
    if isinstance(target, _SPECS):
        _is_no_spec(target, style, target.name)
    elif callable(target):
        target = _adapted(target, style)
    else:
        raise AddressError(
            f"a target is an address, a spec or a callable, not {target!r}; "
            "declare attnbench.ScoringSpec(name=..., make=...)."
        )
    name, _, kernel = spec_key(target).partition("/")
    return [_subject(_settled(target), Address(name, kernel or None))]


def make_scoring(address: str | ScoringSpec, query_size: int, key_size: int) -> nn.Module:
    """Make the module of a scoring function, as for the option ``scoring=`` of a mechanism.

    Args:
        address: address of a scoring function, possibly with options, or its spec.
        query_size, key_size: Eq and Ek.

    Raises:
        UnknownNameError, OptionError, ShapeError: it is unknown, or cannot be made like this.
    """
    matches = resolve(address)
    if len(matches) != 1 or matches[0].kind != "scoring":
        raise OptionError(
            f"scoring={address} is not a scoring function; one is "
            f"{', '.join(s.name for s in installed() if s.kind == 'scoring')}."
        )
    return matches[0].make(query_size, key_size, 0)


def _is_distribution(address: Address) -> bool:
    source = canonicalize_name(str(address.source))
    return not address.is_file and any(
        canonicalize_name(plugin.distribution) == source for plugin in registry().plugins
    )


def _installed_spec(address: Address) -> Spec:
    spec = registry().get(address)
    _is_no_spec(spec, address.style, address.key)
    return _following(spec, address.conventions)


def _subject(spec: Spec, address: Address, near: Collection[Spec] = ()) -> Subject:
    """The subject of a spec; one that a plugin brings has its address as its name."""
    named = replace(address, style=None, conventions={})
    name = spec_key(spec) + format_options(address.options) if near else str(named)
    if isinstance(spec, KernelSpec):
        scoring = _scoring_of_kernel(spec, near)
        check_options(name, scoring.make, address.options)
        return KernelSubject(name, spec, address, scoring)
    check_options(name, spec.make, address.options)
    if isinstance(spec, ScoringSpec):
        return ScoringSubject(name, spec, address)
    if isinstance(spec, LayerSpec):
        return LayerSubject(name, spec, address)
    return MechanismSubject(name, spec, address)


def _scoring_of_kernel(kernel: KernelSpec, near: Iterable[Spec]) -> ScoringSpec:
    for spec in near:
        if isinstance(spec, ScoringSpec) and spec.name == kernel.scoring:
            return spec
    return registry().scoring_for(kernel)


def members(address: Address) -> list[Address]:
    """The addresses of what a file or module declares, if an address means all of it.

    That is its specs, or else every class and function that looks like attention.

    Raises:
        AddressError, UnknownNameError: it cannot be imported, or there is nothing.
    """
    if address.name != ALL:
        return [address]
    module = load(str(address.source))
    declared = [name for name, value in vars(module).items() if isinstance(value, _SPECS)]
    names = declared or [*candidates(module)]
    if not names:
        raise AddressError(
            f"nothing in {address.source} looks like attention: a spec, a module called so or with "
            "a softmax of products in its forward, or a function of query and key. Name what is "
            f"meant: {address.source}:NAME.{_cut(module)}"
        )
    return [replace(address, name=name) for name in names]


def _cut(module: ModuleType) -> str:
    """What was not run of a module, which may define what is missing, in lines of their own."""
    return "".join(f"\n  {note}" for note in notes_of(module))


def attribute(address: Address) -> Any:
    """The value of the attribute of a file or module, whatever it is."""
    module = load(str(address.source))
    if not hasattr(module, address.name):
        names = [n for n, v in vars(module).items() if isinstance(v, _SPECS)] or [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        raise UnknownNameError(
            f"{address.source} has no attribute {address.name!r}. "
            f"{nearest(address.name, names)}{_cut(module)}"
        )
    return getattr(module, address.name)


def _of_attribute(address: Address) -> list[Subject]:
    """The subjects of the attribute of a file or module."""
    found = _specs_in(attribute(address), address)
    specs = {spec_key(spec): _settled(_following(spec, address.conventions)) for spec in found}
    if len(specs) < len(found):
        listed = ", ".join(map(spec_key, found))
        raise AddressError(f"{address} lists two specs of one name ({listed}); rename one.")
    if address.item and address.item not in specs:
        raise UnknownNameError(
            f"{address.source}:{address.name} lists no {address.item!r}. "
            f"{nearest(address.item, specs)}"
        )
    return [
        _subject(spec, replace(address, item=key) if len(specs) > 1 else address, specs.values())
        for key, spec in specs.items()
        if address.item in ("", key)
    ]


def _specs_in(value: Any, address: Address) -> list[Spec]:
    """The specs of an attribute: itself, its items, or the spec that a style makes of it."""
    if address.made:
        value = named_by_plugin("adapters.recipe_from")(address.made, value)
    if address.style is not None and address.style.startswith("example("):
        shown = attribute(parse_address(address.style.removeprefix("example(")[:-1]))
        example_spec = named_by_plugin("adapters.example_spec")
        return [example_spec(value, shown() if callable(shown) else shown)]
    if not isinstance(value, _SPECS) and (callable(value) or address.style is not None):
        return [_adapted(value, address.style)]
    specs = list(value) if isinstance(value, Iterable) else [value]
    for spec in specs:
        if not isinstance(spec, _SPECS):
            raise AddressError(
                f"{address} is {spec!r}, but should be a ScoringSpec, KernelSpec, MechanismSpec or "
                "LayerSpec, or an iterable of them."
            )
        _is_no_spec(spec, address.style, str(address))
    return specs


def _adapted(target: Any, style: str | None) -> Spec:
    """The spec of a callable; where no style is named or known, small calls show how to call it."""
    style = known_style(target) if style is None and callable(target) else style
    told, call = (style or "").partition("(")[::2]
    layouts = (LAYOUTS[told],) if told in LAYOUTS and inspect.isclass(target) else None
    if not callable(target) or (style is not None and told != CALLED and layouts is None):
        spec: Spec = adapted(target, style)
        return spec
    known = {} if style is None else {"prior": named_by_plugin("adapters.prior_of")(call, layouts)}
    found: Spec = named_by_plugin("adapters.spec_of")(target, **known)
    return found


def _is_no_spec(spec: Spec, style: str | None, target: str) -> None:
    if style is not None:
        kind = type(spec).__name__
        raise StyleError(f"{target} is a {kind}, which says itself how it is called: drop --as.")


def _following(spec: Spec, conventions: Mapping[str, Any]) -> Spec:
    """The spec with some conventions replaced."""
    if not conventions:
        return spec
    if not isinstance(spec, MechanismSpec | LayerSpec):
        raise UsageError(
            f"{spec.name} is a {type(spec).__name__}, but conventions are those of mechanisms and "
            "layers."
        )
    stated = {**spec.conventions, **conventions}
    if (
        isinstance(spec, LayerSpec) and stated.get("causal") == "always"
    ):  # a field of a layer's spec
        del stated["causal"]
        spec = replace(spec, causal=True)
    return replace(spec, conventions=stated)


@functools.lru_cache(maxsize=64)
def _settled(spec: Spec) -> Spec:
    """The spec with what a layer's adapter finds out by calling the module."""
    if not isinstance(spec, LayerSpec) or spec.settle is None:
        return spec
    return spec.settle(spec)
