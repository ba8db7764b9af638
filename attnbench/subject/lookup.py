"""Lookup of subjects by address or spec: installed ones, and those of files and modules."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from attnbench._signing import check_options
from attnbench.errors import (
    AddressError,
    AttnbenchError,
    OptionError,
    StyleError,
    UnknownNameError,
    UsageError,
    nearest,
)
from attnbench.registry.address import (
    Address,
    format_options,
    parse_address,
    styled,
    without_style,
)
from attnbench.registry.catalog import Registry, registry
from attnbench.registry.discovery import Spec, normalised
from attnbench.specs import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec
from attnbench.subject.layer import LayerSubject
from attnbench.subject.styles.table import adapted
from attnbench.subject.subject import Subject

__all__ = ["get", "installed", "make_scoring", "resolve", "subjects"]

_SPECS = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


def get(name: str) -> Spec:
    """Look up an installed spec by ``name``, ``scoring/kernel`` or ``distribution:name``.

    Raises:
        UnknownNameError: no loaded plugin registers it; the message suggests the nearest names.
        DuplicateNameError: several plugins register it.
    """
    return registry().get(name)


def subjects() -> list[str]:
    """The addresses of all installed subjects, sorted, including variants that specs list."""
    return [subject.name for subject in installed()]


def installed(source: Registry | None = None) -> list[Subject]:
    """Every installed subject, sorted by address."""
    source = source or registry()
    found = []
    for address, spec, _ in source.specs():
        if isinstance(spec, KernelSpec) and spec.scoring not in source.scoring_names:
            continue  # the plugin of its scoring function is blocked or failed
        variants = () if isinstance(spec, KernelSpec) else spec.variants
        for options in ({}, *variants):
            found.append(_subject(spec, address, address + format_options(options), options))
    return sorted(found, key=lambda subject: subject.name)


def resolve(target: Any, style: str | None = None) -> list[Subject]:
    """Find the subjects of an address or a spec; a file's attribute may give several.

    Args:
        target: an address, a spec, or a callable that a style of call can adapt.
        style: style of call of a target that is not a spec; an address may include it.

    Raises:
        UnknownNameError, DuplicateNameError, AddressError, OptionError: the address matches nothing
            or is ambiguous, or an option is unknown.
        StyleError: the target is not a spec, and the style does not fit or is missing.
    """
    if style is not None and isinstance(target, str):
        return resolve(styled(target, style, ()))
    if isinstance(target, _SPECS):
        _is_no_spec(target, style, target.name)
        return [_subject(_settled(target), _name(target), _name(target), {})]
    if not isinstance(target, str):
        if not callable(target):
            raise AddressError(
                f"a target is an address, a spec or a callable, not {target!r}; "
                "declare attnbench.ScoringSpec(name=..., make=...)."
            )
        made = adapted(target, style)
        return [_subject(made, made.name, made.name, {})]
    address = parse_address(target)
    if address.source is None or _is_distribution(address.source):
        text = without_style(target).partition("(")[0].strip()
        spec: Spec = registry().get(text)
        _is_no_spec(spec, address.style, text)
        spec = _settled(_following(spec, address.conventions))
        return [_subject(spec, text, text + format_options(address.options), address.options)]
    return _resolve_attribute(address, target)


def make_scoring(address: str | ScoringSpec, query_size: int, key_size: int) -> nn.Module:
    """Make the module of a scoring function, as for the option ``scoring=`` of a mechanism.

    Args:
        address: address of a scoring function, possibly with options, or its spec.
        query_size, key_size: Eq and Ek.

    Raises:
        UnknownNameError, OptionError, ShapeError: it is unknown, or cannot be made like this.
    """
    found = resolve(address)
    if len(found) != 1 or found[0].kind != "scoring":
        raise OptionError(
            f"scoring={address} is not a scoring function; one is "
            f"{', '.join(s.name for s in installed() if s.kind == 'scoring')}."
        )
    return found[0].make(query_size, key_size, 0)


def _is_distribution(source: str) -> bool:
    return any(normalised(p.distribution) == normalised(source) for p in registry().plugins)


def _subject(
    spec: Spec,
    address: str,
    name: str,
    options: Mapping[str, Any],
    near: Iterable[Spec] = (),
) -> Subject:
    if isinstance(spec, KernelSpec):
        scoring = _scoring_of_kernel(spec, near)
        check_options(name, scoring.make, options)
        return Subject(name, "kernel", spec, scoring, options, address)
    check_options(name, spec.make, options)
    if isinstance(spec, ScoringSpec):
        return Subject(name, "scoring", spec, spec, options, address)
    if isinstance(spec, LayerSpec):
        return LayerSubject(name, "layer", spec, None, options, address)
    return Subject(name, "mechanism", spec, None, options, address)


def _scoring_of_kernel(kernel: KernelSpec, near: Iterable[Spec]) -> ScoringSpec:
    for spec in near:
        if isinstance(spec, ScoringSpec) and spec.name == kernel.scoring:
            return spec
    return registry().scoring_for(kernel)


def _resolve_attribute(address: Address, target: str) -> list[Subject]:
    assert address.source is not None
    module = _load_file(address.source) if address.is_file else _import(address.source, target)
    if not hasattr(module, address.name):
        names = [n for n, v in vars(module).items() if isinstance(v, _SPECS)] or [
            n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__
        ]
        raise UnknownNameError(
            f"{address.source} has no attribute {address.name!r}. {nearest(address.name, names)}"
        )
    specs = [
        _settled(_following(spec, address.conventions))
        for spec in _specs_in(getattr(module, address.name), address.style, target)
    ]
    bare = target.partition("(")[0].strip() if address.options else target
    names = [_name(spec) for spec in specs]
    if address.item and address.item not in names:
        raise UnknownNameError(
            f"{address.source}:{address.name} lists no {address.item!r}. "
            f"{nearest(address.item, names)}"
        )
    return [
        _subject(spec, bare, name + format_options(address.options), address.options, near=specs)
        for name, spec in zip(names, specs, strict=True)
        if address.item in ("", name)
    ]


def _name(spec: Spec) -> str:
    return f"{spec.scoring}/{spec.name}" if isinstance(spec, KernelSpec) else spec.name


def _specs_in(value: Any, style: str | None, target: str) -> list[Spec]:
    """The specs of an attribute: itself, its items, or the spec that a style makes of it."""
    if isinstance(value, _SPECS):
        _is_no_spec(value, style, target)
        return [value]
    if callable(value) or style is not None:
        return [adapted(value, style)]
    specs = list(value) if isinstance(value, Iterable) else [value]
    for spec in specs:
        if not isinstance(spec, _SPECS):
            raise AddressError(
                f"{target} is {spec!r}, but should be a ScoringSpec, KernelSpec, MechanismSpec or "
                "LayerSpec, or an iterable of them."
            )
        _is_no_spec(spec, style, target)
    return specs


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
    return replace(spec, conventions={**spec.conventions, **conventions})


@functools.lru_cache(maxsize=64)
def _settled(spec: Spec) -> Spec:
    """The spec with what a layer's adapter finds out by calling the module."""
    if not isinstance(spec, LayerSpec) or spec.settle is None:
        return spec
    return spec.settle(spec)


def _import(name: str, target: str) -> ModuleType:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(target, error) from error
        raise UnknownNameError(
            f"{target}: there is neither a distribution nor a module {name!r}; "
            "a file is addressed as path/to/file.py:ATTRIBUTE."
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(target, error) from error


def _failed(target: str, error: BaseException) -> AttnbenchError:
    """Convert an exception raised by an import to one error with its location."""
    if isinstance(error, AttnbenchError):
        return error
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    return AddressError(
        f"{target} cannot be imported: {type(error).__name__}: {error}\n  at {file}:{line}"
    )


def _load_file(text: str) -> ModuleType:
    path = Path(text).resolve()
    if not path.is_file():
        raise AddressError(f"there is no file {text!r} (looked at {path}).")
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    name = path.stem
    known = sys.modules.get(name)
    if known is not None and getattr(known, "__file__", None) != str(path):
        name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"  # files may share a name
        known = sys.modules.get(name)
    if known is not None:
        return known
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its modules can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _failed(text, error) from error
        raise
    return module
