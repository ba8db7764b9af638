"""The style of modules on hidden states.

The signature of ``forward`` tells which arguments take the padding mask, the cache, the positions
and the number of tokens seen. Everything else is an argument of :func:`layer`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from attnbench import CacheSpec, LayerSpec
from attnbench.errors import DtypeError, UsageError, nearest
from attnbench.styles import DTYPES, Keywords, call_arguments, keywords_of, named
from attnbench_plugins.adapters.binding import FIRST, Binding, Mask
from attnbench_plugins.adapters.calls.caches import KEPT, Held, held_cache, tuples_like
from attnbench_plugins.adapters.calls.layer_call import Layer
from attnbench_plugins.adapters.trials.small_calls import ITEMS, Callee, Calls

FORMS: Mapping[str, Mask] = {
    "boolean": Mask("BS", "shows"),
    "ones": Mask("BS", "ones"),
    "padding": Mask("BS", "hides"),
    "additive": Mask("B11S", "added"),
}
"""True = real; 1 = real; True = padding; ``(B, 1, 1, S)`` with the lowest number at padding."""

_MASKS = {
    "padding_mask": "boolean",
    "attention_mask": "ones",
    "mask": "boolean",
    "attn_mask": "boolean",
    "key_padding_mask": "padding",
    "src_key_padding_mask": "padding",
    "self_attn_padding_mask": "padding",
    "encoder_padding_mask": "padding",
    "input_mask": "boolean",
}
"""Possible names of the argument for the padding, in the order of search, and their forms."""

_CACHES = (*named("cache", "forward"), "state")
_COUNTED = {
    **dict.fromkeys(named("start", "forward")[:4], "start"),
    **dict.fromkeys(named("slots", "forward")[:2], "slots"),
}
"""Possible names of the number of earlier tokens, and of the slots of the new ones."""
_FIRST, _MORE = 7, 2
"""Numbers of tokens of two calls, the second of which gets the cache of the first."""


@dataclass(frozen=True)
class _Said:
    """What :func:`layer` was told of a module; see there."""

    make: Any
    mask: str | None
    form: str | None
    cache: CacheSpec | None
    kept: str
    cache_name: str | None
    positions: str | None
    source: str | None
    keywords: Mapping[str, Any]
    cached_keywords: Mapping[str, Any]
    fields: Mapping[str, Any]

    @property
    def cached(self) -> bool:
        """Whether a cache was declared."""
        return self.cache is not None or self.kept != "argument"

    def module(self, size: int, **options: Any) -> nn.Module:
        """The module itself."""
        template = isinstance(self.make, nn.Module)
        made = copy.deepcopy(self.make) if template else self.make(size, **options)
        if not isinstance(made, nn.Module):
            raise DtypeError(f"make({size}) gave {type(made).__name__}, not an nn.Module.")
        return made

    def binding(self, module: nn.Module) -> Binding:
        """How a module is called, by the names of its arguments."""
        taken = keywords_of(module) or Keywords(())
        mask = _found(module, taken.names, _MASKS, self.mask)
        holds = _found(module, taken.names, _CACHES, self.cache_name) if self.cached else None
        if self.cached and self.kept != "module" and holds is None:
            raise UsageError(
                f"{type(module).__name__} takes none of {', '.join(_CACHES)}; name the argument "
                "that takes the cache with cache_name=, or give kept='module'."
            )
        roles: dict[str, str] = {"0": "hidden"}
        values: dict[str, Any] = {}
        if holds is not None and self.kept != "module":
            roles[holds] = "cache"
        for name in taken.names:
            if name in ("position_ids", self.positions):
                roles[name], values[name] = "positions", "BL"
            elif name in _COUNTED:
                roles[name] = _COUNTED[name]
                # without a cache, a default says that there is none
                values |= {name: None} if name in taken.required else {}
        if self.source is not None:
            roles[self.source] = "memory"
        asked = {"use_cache": True} if "use_cache" in taken.names else {}
        cached = {**asked, **self.cached_keywords}
        roles |= dict.fromkeys(cached, "cached") | dict.fromkeys(self.keywords, "constant")
        values |= {**cached, **self.keywords}
        if mask is not None:
            roles[mask] = "mask"
            values |= {mask: True} if mask in taken.required else {}
        return Binding(
            shape="layer",
            layout="BLE",
            memory="BSE" if self.source else "",
            roles=roles,
            masks={} if mask is None else {mask: FORMS[self.form or _MASKS.get(mask, "boolean")]},
            output=(FIRST, "BLE"),
            values=values,
        )


def layer(
    make: Callable[..., nn.Module] | nn.Module,
    *,
    mask: str | None = "",
    form: str | None = None,
    cache: CacheSpec | None = None,
    kept: str = "argument",
    cache_name: str | None = "",
    positions: str | None = "",
    source: str | None = None,
    keywords: Mapping[str, Any] | None = None,
    cached_keywords: Mapping[str, Any] | None = None,
    **fields: Any,
) -> LayerSpec:
    """Make a layer spec of a module on hidden states ``(B, L, E)``.

    The module may return its output alone, or a tuple or object whose first element it is.

    Args:
        make: ``make(size)`` returns the module; an existing module is copied, and has a single E.
        mask: name of the argument for the padding; by default found by its usual names; ``None``
            for a module without one.
        form: form of the padding: ``"boolean"`` (True is real), ``"ones"`` (1 is real),
            ``"padding"`` (True is padding) or ``"additive"`` (``(B, 1, 1, S)``, the lowest number
            of the dtype at padding); by default that of the usual names.
        cache: how to create and change the module's cache; ``kept`` says what its functions get.
        kept: where the cache is. ``"argument"``: it is passed in, and changed in place or returned
            with the output. ``"returned"``: the cache returned by a call is the argument of the
            next, as with tuples of keys and values, which need no ``cache``. ``"module"``: it is in
            the module, whose state is swapped around each call; the functions of ``cache`` get the
            module, and ``new`` makes it ready for a batch.
        cache_name: name of the argument for the cache, if it is not a usual one; ``None`` to leave
            a cache that the signature shows untried.
        positions: name of the argument for positions ``(B, L)``, counted from the first real token,
            if it is not a usual one; ``None`` to leave what looks like one alone.
        source: name of the argument for a second sequence ``(B, S, E)``, as a decoder's memory.
        keywords, cached_keywords: further arguments of every call, and of calls with a cache.
        fields: fields of :class:`attnbench.LayerSpec`, such as ``name``, ``causal`` and ``laws``. A
            layer with a cache is causal unless ``causal=False`` is given.

    Where neither says so, a few calls show whether the module is causal, and whether it gives back
    a cache (with ``use_cache=True``, where it takes that). They are made when the subject is looked
    up, and the first lines of a report name what they showed.

    Raises:
        UsageError: an argument has an invalid value; when the subject is looked up: the signature
            shows a mask, a cache or a position of which nothing says how to use it.
    """
    for word, known in ((form, (None, *FORMS)), (kept, KEPT)):
        if word not in known:
            raise UsageError(f"layer: {word!r} is none of {', '.join(filter(None, known))}.")
    constants = (keywords or {}, cached_keywords or {})
    return _spec(
        _Said(make, mask, form, cache, kept, cache_name, positions, source, *constants, fields)
    )


def _spec(said: _Said) -> LayerSpec:
    """The spec of a layer, before its module is called."""

    def wrap(size: int, **options: Any) -> Layer:
        module = said.module(size, **options)
        return Layer(module, said.binding(module))

    cache = held_cache(said.cache, said.kept)
    target = said.make
    names = _names(target) if isinstance(target, type | nn.Module) else None
    known = names is None or any(name in _MASKS for name in names)
    takes = {
        "padding_mask": said.mask is not None and (bool(said.mask) or known),
        "cache": cache is not None,
    }
    sides = {"source": said.source is not None, "extras": bool(said.fields.get("extras"))}
    own = said.fields.get("accepts", [name for name, given in takes.items() if given])
    found = {
        "name": getattr(target, "__name__", type(target).__name__).strip("<>"),
        "make": wrap,
        "causal": cache is not None,
        "cache": cache,
        **said.fields,
        "accepts": tuple(dict.fromkeys([*own, *(name for name, given in sides.items() if given)])),
    }
    return LayerSpec(settle=lambda spec: _settled(spec, said), **found)


def _settled(spec: LayerSpec, said: _Said) -> LayerSpec:
    """The spec with what a few calls show of its module, where the signature leaves it open."""
    calls = _calls(spec)
    if calls is None:
        return spec  # a check reports it
    names = _names(calls.callee.at())
    given = {*said.keywords, *said.cached_keywords, said.source, said.positions} - {None}
    returned = said.kept == "returned" and said.cache is None
    name = next((n for n in _CACHES if n in names), None)
    asks = name is not None or "use_cache" in names
    if not said.cached and said.cache_name is not None and asks and not given & {name, "use_cache"}:
        spec, returned = _with_cache(spec, said, name, "use_cache" in names), True
    for what, argument in _unsaid(spec, said, calls, given):
        told = _UNSAID[what].format(argument, ", ".join(FORMS))
        raise UsageError(f"{spec.name}: forward takes {argument!r}, {told}.")
    if said.mask == "" and not calls.binding.masks:
        spec = replace(spec, accepts=tuple(n for n in spec.accepts if n != "padding_mask"))
    if returned:
        spec = _with_tuples(spec)
    spec = _with_dtypes(spec, calls)
    seen = calls.reach() if spec.cache is None and "causal" not in said.fields else None
    if seen is None:
        return spec
    causal = not bool(seen.triu(1).any())
    note = f"{'' if causal else 'not '}causal (found by trying)"
    return replace(spec, causal=causal, notes=(*spec.notes, note))


def _calls(spec: LayerSpec) -> Calls | None:
    """Small calls of a layer's module; ``None`` if it cannot be made."""
    try:
        size = 8 if spec.sizes is None else spec.sizes(8)
        made: Any = spec.make(size)
    except UsageError:
        raise
    except Exception:
        return None
    calls = Calls(Callee(lambda *sizes: spec.make(sizes[0]).callee, size), made.binding)
    if spec.dtypes is not None and "float32" not in spec.dtypes:
        calls.dtype = spec.dtypes[0]
    return calls


def _with_cache(spec: LayerSpec, said: _Said, name: str | None, asks: bool) -> LayerSpec:
    """The layer with a cache that its module gives back, perhaps where it is asked for one.

    Raises:
        UsageError: it gives none, or cannot be called with it.
    """
    what, found = "and no argument with a usual name takes what comes back", spec
    if name is not None:
        own = {**said.fields, "name": spec.name, "conventions": spec.conventions}
        found = _spec(replace(said, kept="returned", cache_name=name, fields=own))
        held, raised = _held_after(found, _FIRST, _MORE)
        what = "" if held is not None else "but gives none back"
        if raised:
            request = "asked for one" if held is None else "given what it gave back"
            what = f"but raises when it is {request} ({raised})"
    if what:
        raise UsageError(
            f"{spec.name}: forward takes {name or 'use_cache'!r}, {what}: give "
            "cache=attnbench.CacheSpec(new=...), where it is changed in place; kept='module', "
            "where the module holds it; cache_name=, the argument that takes what it gives back; "
            "or cache_name=None, to leave it untried."
        )
    note = f"cache in {name}, given back{' with use_cache=True' if asks else ''} (found by trying)"
    return replace(found, notes=(*spec.notes, note))


def _held_after(spec: LayerSpec, *lengths: int) -> tuple[Any, str]:
    """The cache after calls of so many tokens each, and what one of them raised."""
    calls = _calls(spec)
    assert calls is not None
    assert spec.cache is not None
    hidden, *rest = calls.tensors(sum(lengths))
    held: Held = spec.cache.new(calls.module([hidden]), ITEMS)
    for own in torch.split(hidden, [*lengths], 1):
        before = held.length
        calls([own, *rest], cache=held)
        if held.length == before:
            return held.value, calls.raised
        if held.value is None:
            break
    return held.value, ""


def _with_tuples(spec: LayerSpec) -> LayerSpec:
    """A layer that gives back tuples, with the operations on them that a call shows are known."""
    held, _ = _held_after(spec, _FIRST)
    if held is None:
        return spec
    known = tuples_like(held, ITEMS, _FIRST)
    lacking = {"slots none are cropped": known.crop, "rows none are selected": known.select}
    notes = [f"of its cache's {what} (found by trying)" for what in lacking if not lacking[what]]
    return replace(spec, cache=held_cache(known, "returned"), notes=(*spec.notes, *notes))


_UNSAID = {
    "mask": "which may say what is padding: give mask={0!r} with form= one of {1}, or mask=None",
    "start": "where tokens after cached ones begin, and no argument for a cache: give "
    "kept='module', where the module holds it, cache_name=, or cache_name=None",
    "position": "which may be where the tokens after cached ones are: give positions={0!r} if it "
    "takes (B, L), cached_keywords= for a constant, or positions=None",
    "needed": "and nothing says what that is: give keywords={{{0!r}: ...}} for a constant, "
    "source={0!r} for a second sequence (B, S, E), or positions={0!r} for positions (B, L)",
}
"""What is said of an argument of which nothing decides what it gets, by what it may be."""


def _unsaid(
    spec: LayerSpec, said: _Said, calls: Calls, given: Collection[str | None]
) -> Iterator[tuple[str, str]]:
    """What arguments may be, and their names, where nothing decides what they get."""
    taken = keywords_of(calls.callee.at()) or Keywords(())
    if said.mask == "" and not calls.binding.masks:
        lengths = named("lengths", "forward")
        yield from (("mask", name) for name in taken.names if "mask" in name or name in lengths)
    counts = said.positions is not None and said.cache_name is not None
    for name in [name for name in taken.names if counts and name not in given]:
        alike = any(part in name for part in ("pos", "offset", "rotary")) and name != "position_ids"
        if spec.cache is None and name in _COUNTED:
            yield "start", name
        elif spec.cache is not None and alike and name not in _COUNTED:
            yield "position", name
    for name in taken.required[1:] if "extras" not in spec.accepts else ():
        if name not in calls.binding.roles and name not in _CACHES:
            yield "needed", name


def _with_dtypes(spec: LayerSpec, calls: Calls) -> LayerSpec:
    """A layer without the dtypes that lack a number of it, as float16 lacks -1e9.

    Where an item without a real token, and it alone, gives NaN in any dtype, its spec says so.
    """
    masked: dict[str, Any] = {}
    if "padding_mask" in spec.accepts:
        real = torch.ones(calls.tensors()[0].shape[:2], dtype=torch.bool)
        real[-1] = False
        masked = {"padding_mask": real}
    raised: dict[str, str] = {}
    for name in DTYPES if spec.dtypes is None else spec.dtypes:
        output = calls(dtype=name, **masked)
        if output is None:
            raised[name] = calls.raised
        elif masked and bool(output[-1].isnan().any() and output[:-1].isfinite().all()):
            spec = replace(spec, conventions={"empty_rows": "nan", **spec.conventions})
    lacking = {name: told for name, told in raised.items() if "without overflow" in told}
    if spec.dtypes is not None or not lacking:
        return spec
    note = f"not tried in {' and '.join(lacking)}, where it raises {next(iter(lacking.values()))}"
    left = tuple(name for name in DTYPES if name not in lacking)
    return replace(spec, dtypes=left, notes=(*spec.notes, note))


def _names(target: Any) -> tuple[str, ...]:
    """The names of the arguments of a module's ``forward``."""
    return tuple(each.name for each in call_arguments(target) or ())


def _found(module: nn.Module, names: Sequence[str], usual: Any, asked: str | None) -> str | None:
    """The requested argument, or else the first with a usual name."""
    if asked is None or (asked and asked in names):
        return asked
    if asked:
        raise UsageError(
            f"forward of {type(module).__name__} has no argument {asked!r}. {nearest(asked, names)}"
        )
    return next((name for name in usual if name in names), None)
