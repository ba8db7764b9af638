"""The adapter for modules on hidden states.

The signature of ``forward`` tells which arguments take the padding mask, the cache, the positions
and the number of tokens seen. Everything else is an argument of :func:`layer`.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import DtypeError, RefusalError, UsageError, nearest
from attnbench.specs import CacheSpec, LayerSpec
from attnbench.subject.styles.held import KEPT, Held, held_cache
from attnbench.subject.styles.turned_masks import padding_as

__all__ = ["FORMS", "HiddenStates", "layer"]

MASKS = {
    "padding_mask": "boolean",
    "attention_mask": "ones",
    "mask": "boolean",
    "attn_mask": "boolean",
    "key_padding_mask": "padding",
    "src_key_padding_mask": "padding",
}
"""Possible names of the argument for the padding, in the order of search, and their forms."""

FORMS = ("boolean", "ones", "padding", "additive")
"""True = real; 1 = real; True = padding; ``(B, 1, 1, S)`` with the lowest number at padding."""

CACHES = ("cache", "past_key_values", "past_key_value", "layer_past", "kv_cache", "past", "state")
"""Possible names of the argument for the cache."""

OFFSETS = ("start_pos", "offset", "past_length", "position_offset")
"""Possible names of the argument for the number of earlier tokens."""

SLOTS = ("input_pos", "cache_position")
"""Possible names of the argument for the slots ``(L,)`` of the new tokens."""


class HiddenStates(nn.Module):
    """A module on hidden states, with the interface of a layer.

    Args:
        module: module to call.
        mask: name of the argument for the padding, or ``None``.
        form: one of :data:`FORMS`.
        cache: name of the argument for the cache, or ``None``.
        kept: one of :data:`KEPT`.
        keywords, cached_keywords: further arguments of every call, and of calls with a cache.
    """

    def __init__(
        self,
        module: nn.Module,
        mask: str | None,
        form: str,
        cache: str | None,
        kept: str,
        keywords: Mapping[str, Any],
        cached_keywords: Mapping[str, Any],
    ) -> None:
        super().__init__()
        self.module, self.mask, self.form, self.cache, self.kept = module, mask, form, cache, kept
        self.keywords, self.cached_keywords = dict(keywords), dict(cached_keywords)
        self.names = _names(module)

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Held | None = None
    ) -> Tensor:
        """Output ``(B, L, E)``; the cache is updated in place."""
        past = 0 if cache is None else cache.length
        given = {**self.keywords, **self._places(hidden, padding_mask, past)}
        if padding_mask is not None and self.mask is None:
            raise RefusalError(f"{type(self.module).__name__} takes no padding mask")
        if padding_mask is not None and self.mask is not None:
            given[self.mask] = padding_as(padding_mask, self.form, hidden)
        if cache is None:
            return output_of(self.module(hidden, **given))
        given.update(self.cached_keywords)
        if self.kept == "module":
            with cache.installed():
                return output_of(self.module(hidden, **given), cache, hidden.shape[1])
        if self.cache is not None:
            given[self.cache] = cache.value
        result = self.module(hidden, **given)
        cache.take(result, returned=self.kept == "returned")
        return output_of(result, cache, hidden.shape[1])

    def _places(self, hidden: Tensor, real: Tensor | None, past: int) -> dict[str, Any]:
        """The positions of the new tokens, under the module's argument names."""
        slots = torch.arange(past, past + hidden.shape[1], device=hidden.device)
        where = slots.expand(hidden.shape[0], -1)
        if real is not None:
            where = (real.cumsum(-1) - 1).clamp_min(0)[:, past:]
        known: dict[str, Any] = {"position_ids": where}
        known |= dict.fromkeys(OFFSETS, past) | dict.fromkeys(SLOTS, slots)
        return {name: known[name] for name in self.names if name in known}


def layer(
    make: Callable[..., nn.Module] | nn.Module,
    *,
    mask: str | None = "",
    form: str | None = None,
    cache: CacheSpec | None = None,
    kept: str = "argument",
    cache_name: str | None = None,
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
        cache_name: name of the argument for the cache, if it is not a usual one.
        keywords, cached_keywords: further arguments of every call, and of calls with a cache.
        fields: fields of :class:`attnbench.LayerSpec`, such as ``name``, ``causal`` and ``laws``. A
            layer with a cache is causal unless ``causal=False`` is given.

    Raises:
        UsageError: an argument has an invalid value.
    """
    if form not in (None, *FORMS) or kept not in KEPT:
        wrong, known = (form, FORMS) if form not in (None, *FORMS) else (kept, KEPT)
        raise UsageError(f"layer: {wrong!r} is none of {', '.join(known)}.")
    cached = cache is not None or kept == "returned"
    template = make if isinstance(make, nn.Module) else None

    def wrap(size: int, **options: Any) -> HiddenStates:
        module = copy.deepcopy(template) if template is not None else make(size, **options)
        if not isinstance(module, nn.Module):
            raise DtypeError(f"make({size}) gave {type(module).__name__}, not an nn.Module.")
        names = _names(module)
        taken = _found(module, names, MASKS, mask)
        holds = _found(module, names, CACHES, cache_name or "") if cached else None
        if cached and kept != "module" and holds is None:
            raise UsageError(
                f"{type(module).__name__} takes none of {', '.join(CACHES)}; name the argument that"
                " takes the cache with cache_name=, or give kept='module'."
            )
        chosen = form or MASKS.get(taken or "", "boolean")
        more = {"use_cache": True} if "use_cache" in names else {}
        return HiddenStates(
            module, taken, chosen, holds, kept, keywords or {}, {**more, **(cached_keywords or {})}
        )

    return LayerSpec(**_known(make, template, wrap, mask, held_cache(cache, kept), fields))


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
