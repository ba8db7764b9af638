"""The adapter for modules on hidden states.

The signature of ``forward`` tells which arguments take the padding mask, the cache, the positions
and the number of tokens seen. Everything else is an argument of :func:`layer`.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.caches import KEPT, Held, drop_graphs, held_cache
from attnbench.calling.keywords import keywords_of
from attnbench.calling.styles.argument_names import CACHES, FORMS, MASKS, OFFSETS, SLOTS
from attnbench.calling.styles.layer_answers import (
    is_causal,
    refuse_masks,
    refuse_no_cache,
    refuse_positions,
    refuse_unknown,
    tried,
    with_dtypes,
    with_tuples,
)
from attnbench.calling.turned_masks import padding_as
from attnbench.errors import DtypeError, RefusalError, UsageError, nearest
from attnbench.specs import CacheSpec, LayerSpec

_EXEMPT = {"module": {"fake_tensors_tell_the_shape": "the module holds its cache, in real tensors"}}


class HiddenStates(nn.Module):
    """A module on hidden states, with the interface of a layer.

    Args:
        module: module to call.
        mask: name of the argument for the padding, or ``None``.
        form: one of :data:`FORMS`.
        cache: name of the argument for the cache, or ``None``.
        kept: one of :data:`KEPT`.
        positions: name of a further argument for positions ``(B, L)``, or ``None``.
        source: name of the argument for a second sequence, or ``None``.
        keywords, cached_keywords: further arguments of every call, and of calls with a cache.
    """

    def __init__(
        self,
        module: nn.Module,
        mask: str | None,
        form: str,
        cache: str | None,
        kept: str,
        positions: str | None,
        source: str | None,
        keywords: Mapping[str, Any],
        cached_keywords: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.positions, self.source = positions, source
        self.module, self.mask, self.form, self.cache, self.kept = module, mask, form, cache, kept
        self.keywords, self.cached_keywords = dict(keywords), dict(cached_keywords)
        self.names = _names(module)
        called = keywords_of(module)
        self.required = () if called is None else called.required
        self.needs_mask = mask in self.required

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Held | None = None,
        source: Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Output ``(B, L, E)``; the cache is updated in place, and extras are keywords."""
        past = 0 if cache is None else cache.length
        if padding_mask is None and self.needs_mask:
            whole = (hidden.shape[0], past + hidden.shape[1])
            padding_mask = torch.ones(whole, dtype=torch.bool, device=hidden.device)
        given = {**self.keywords, **self._places(hidden, padding_mask, cache), **(extras or {})}
        if self.source is not None:
            given[self.source] = source
        if padding_mask is not None:
            if self.mask is None:
                raise RefusalError(f"{type(self.module).__name__} takes no padding mask")
            given[self.mask] = padding_as(padding_mask, self.form, hidden)
        if cache is None:
            result = self.module(hidden, **given)
            if self.kept == "module":
                drop_graphs(self.module)
            return output_of(result)
        given.update(self.cached_keywords)
        if self.kept == "module":
            with cache.installed():
                return output_of(self.module(hidden, **given), cache, hidden.shape[1])
        if self.cache is not None:
            given[self.cache] = cache.value
        result = self.module(hidden, **given)
        cache.take(result, returned=self.kept == "returned")
        return output_of(result, cache, hidden.shape[1])

    def _places(self, hidden: Tensor, real: Tensor | None, cache: Held | None) -> dict[str, Any]:
        """The positions of the new tokens, under the module's argument names."""
        past, cached = 0 if cache is None else cache.length, cache is not None
        slots = torch.arange(past, past + hidden.shape[1], device=hidden.device)
        where = slots.expand(hidden.shape[0], -1)
        if real is not None:
            where = (real.cumsum(-1) - 1).clamp_min(0)[:, past:]
        known: dict[str, Any] = {"position_ids": where, self.positions or "": where}
        counted = dict.fromkeys(OFFSETS, past) | dict.fromkeys(SLOTS, slots)
        # without a cache, a default says that there is none
        known |= {name: counted[name] for name in counted if cached or name in self.required}
        return {name: known[name] for name in self.names if name in known}


def _check_words(form: str | None, kept: str) -> None:
    if form not in (None, *FORMS) or kept not in KEPT:
        wrong, known = (form, FORMS) if form not in (None, *FORMS) else (kept, KEPT)
        raise UsageError(f"layer: {wrong!r} is none of {', '.join(known)}.")


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
    _check_words(form, kept)
    chosen: dict[str, Any] = {"mask": mask, "form": form, "positions": positions, "source": source}
    chosen |= {"keywords": keywords, "cached_keywords": cached_keywords}
    cached = cache is not None or kept != "argument"
    template = make if isinstance(make, nn.Module) else None

    def wrap(size: int, **options: Any) -> HiddenStates:
        module = copy.deepcopy(template) if template is not None else make(size, **options)
        if not isinstance(module, nn.Module):
            raise DtypeError(f"make({size}) gave {type(module).__name__}, not an nn.Module.")
        names = _names(module)
        taken = _found(module, names, MASKS, mask)
        holds = _found(module, names, CACHES, cache_name) if cached else None
        if cached and kept != "module" and holds is None:
            raise UsageError(
                f"{type(module).__name__} takes none of {', '.join(CACHES)}; name the argument that"
                " takes the cache with cache_name=, or give kept='module'."
            )
        shape = form or MASKS.get(taken or "", "boolean")
        given = {"use_cache": True} if "use_cache" in names else {}
        more = (keywords or {}, {**given, **(cached_keywords or {})})
        return HiddenStates(module, taken, shape, holds, kept, positions, source, *more)

    def with_returned(name: str | None, spec: LayerSpec) -> LayerSpec:
        """The same layer with a cache that it gives back."""
        options = {**fields, "name": spec.name, "conventions": spec.conventions, **chosen}
        return layer(make, kept="returned", cache_name=name, **options)

    def settle(spec: LayerSpec) -> LayerSpec:
        module, hidden = tried(spec)
        if module is None:
            return spec  # a check reports it
        known = {*(keywords or {}), *(cached_keywords or {}), *([source] if source else [])}
        notes, beside = [], {"source": hidden} if source else {}
        tuples = kept == "returned" and cache is None
        name = next((n for n in CACHES if n in module.names), None)
        asks = name is not None or "use_cache" in module.names
        if not cached and cache_name is not None and asks and not known & {name, "use_cache"}:
            if name is None:
                raise UsageError(
                    f"{spec.name}: forward takes 'use_cache', and no argument with a usual "
                    "name for what comes back: name it with cache_name=; give kept='module', "
                    "where the module holds it, or cache_name=None to leave it untried."
                )
            text = f"{spec.name}: forward takes {name!r}"
            spec = with_returned(name, spec)
            assert spec.cache is not None
            made, tuples = spec.make(hidden.shape[-1]).to(hidden.dtype).eval(), True
            refuse_no_cache(made, spec.cache, hidden, text, **beside)
            how = " with use_cache=True" if "use_cache" in module.names else ""
            note = f"cache in {name}, given back{how} (found by trying)"
            spec = replace(spec, notes=(*spec.notes, note))
        if mask == "" and module.mask is None:
            refuse_masks(spec.name, module.names)
            spec = replace(spec, accepts=tuple(n for n in spec.accepts if n != "padding_mask"))
        spec = with_tuples(spec, hidden, tuples=tuples, **beside)
        if None not in (positions, cache_name):
            refuse_positions(spec, module.names, known | {positions})
        refuse_unknown(spec, module, known | {positions})
        spec = with_dtypes(spec, module, hidden, **beside)
        if spec.cache is None and "causal" not in fields:
            with contextlib.suppress(Exception):  # which a check reports
                spec = replace(spec, causal=is_causal(partial(module, **beside), hidden))
                notes.append(f"{'' if spec.causal else 'not '}causal (found by trying)")
        return replace(spec, notes=(*spec.notes, *notes))

    fields["exempt"] = {**_EXEMPT.get(kept, {}), **fields.get("exempt", {})}
    found_out = _known(make, template, wrap, mask, held_cache(cache, kept), fields)
    sides = (("source",) if source else ()) + (("extras",) if fields.get("extras") else ())
    found_out["accepts"] = tuple(dict.fromkeys((*found_out["accepts"], *sides)))
    return LayerSpec(settle=settle, **found_out)


def _known(
    make: Any,
    template: nn.Module | None,
    wrap: Callable[..., nn.Module],
    mask: str | None,
    cache: CacheSpec | None,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """The fields of the spec; given ones override those found out."""
    target = template if template is not None else make
    names = _names(target) if isinstance(target, type | nn.Module) else None
    takes = mask is not None and (bool(mask) or names is None or any(n in MASKS for n in names))
    accepts = (("padding_mask",) if takes else ()) + (("cache",) if cache else ())
    name = getattr(target, "__name__", type(target).__name__).strip("<>")
    found = {"name": name, "make": wrap, "causal": cache is not None, "cache": cache}
    return {**found, "accepts": accepts, **fields}


def _names(target: Any) -> tuple[str, ...]:
    """The names of the arguments of a module's ``forward``."""
    return tuple(inspect.signature(getattr(target, "forward", target)).parameters)


def _found(module: nn.Module, names: tuple[str, ...], usual: Any, asked: str | None) -> str | None:
    """The requested argument, or else the first with a usual name."""
    if asked is None or (asked and asked in names):
        return asked
    if asked:
        raise UsageError(
            f"forward of {type(module).__name__} has no argument {asked!r}. {nearest(asked, names)}"
        )
    return next((name for name in usual if name in names), None)


def output_of(result: Any, cache: Held | None = None, count: int = 0) -> Tensor:
    """The output of a call, first in its result; adds ``count`` tokens to the cache's length."""
    if cache is not None:
        cache.length += count
    if isinstance(result, Tensor):
        return result
    first = result[0] if isinstance(result, tuple | list) else None
    first = getattr(result, "last_hidden_state", first)
    if not isinstance(first, Tensor):
        raise DtypeError(
            f"the module gave {type(result).__name__}, but a layer gives its output, a tuple that "
            "begins with it, or an object with last_hidden_state."
        )
    return first
