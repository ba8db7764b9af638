"""The declaration of a layer and its cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from attnbench.specs.common import (
    ReadOnly,
    check_callable,
    check_same_as,
    freeze_common,
    freeze_tuple,
    is_count,
    require,
)
from attnbench.specs.conventions import LAYER_DEFAULTS, freeze_conventions

if TYPE_CHECKING:
    from torch import Tensor, nn

LAYER_ACCEPTS = ("padding_mask", "cache", "source", "extras")
"""Keyword arguments that a layer's ``forward`` may take beyond ``hidden``."""

PATHS = ("chunked_equals_recurrent", "absorbed_equals_expanded")
"""Laws which state that two methods of a layer's module agree."""


def _is_window(window: Any) -> bool:
    if window is None or is_count(window):
        return True
    sides = window if isinstance(window, tuple) else ()
    return len(sides) == 2 and all(type(side) is int and side >= 0 for side in sides)


@dataclass(frozen=True, kw_only=True, eq=False)
class CacheSpec:
    """The cache of a layer, which stores earlier tokens, and its operations.

    Args:
        new: ``new(module, batch_size)`` gives an empty cache.
        select: ``select(cache, index)`` keeps the rows that a 1-D int64 tensor on the cache's
            device names: at least one, in that order, repeats allowed. The cache may be fresh.
        crop: ``crop(cache, length)`` keeps the first ``length`` slots, which exist.
        length: ``length(cache)`` is the number of slots appended and not cropped; padded and
            evicted ones count.
        capacity: number of slots that it can hold; a check stays within it, and within 64 if it is
            ``None``.
        append_tree: ``append_tree(module, hidden, cache, parents)`` appends a tree of tokens
            ``(B, L, E)``: ``parents``, ``(L,)`` int64, has for each the index of an earlier one of
            them, or -1 for the last token in the cache. A token sees the cache and its ancestors.
            It gives the output ``(B, L, E)`` and changes the cache in place, or gives ``(output,
            cache)``. ``crop`` to the first tokens, where they are a path, keeps that path.

    ``select`` and ``crop`` return the cache to continue with, after which the old one is not used,
    or ``None`` if they changed it in place. An operation that is ``None`` is not tried. One that
    raises ``NotImplementedError`` must leave the cache as it was.

    Raises:
        SpecError: a field has the wrong type.
    """

    kind: ClassVar[str] = "spec"
    name: ClassVar[str] = "CacheSpec"

    new: Callable[[Any, int], Any]
    select: Callable[[Any, Tensor], Any] | None = None
    crop: Callable[[Any, int], Any] | None = None
    length: Callable[[Any], int] | None = None
    capacity: int | None = None
    append_tree: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        check_callable(self, "new")
        check_callable(self, "select", "crop", "length", "append_tree", optional=True)
        require(
            self,
            self.capacity is None or is_count(self.capacity),
            f"capacity should be a positive number of slots or None, not {self.capacity!r}",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LayerSpec:
    """A layer: maps hidden states ``(B, L, E)`` to hidden states, with padding and perhaps a cache.

    Args:
        name: its address; unique among subjects.
        make: ``make(size, **options)``, E by position, gives an ``nn.Module`` whose
            ``forward(hidden, padding_mask=None, cache=None)`` gives ``(B, L, E)``. The mask is
            boolean ``(B, length + L)``, True for a real token, ``length`` being that of the cache.
            Called with a cache, it gives the output of the new tokens and changes the cache in
            place, or gives ``(output, cache)``.
        causal: an output depends on its own and earlier positions only.
        accepts: which of :data:`LAYER_ACCEPTS` its ``forward`` takes. ``source`` is a second
            sequence ``(B, S, E)``, the same in every call of a sequence; ``extras`` is a dict of
            tensors ``(B, L)``, one entry for each new token.
        extras: ``extras(case, generator)`` draws the extras of a case: a dict of tensors
            ``(B, L)``, with ``case.lead[0]`` for B and ``case.q_len`` for L.
        cache: how to make and change a cache, for a layer that accepts one.
        window: the span of positions that an output may depend on: its width ``n``, including its
            own position, or ``(before, after)``, the numbers of positions on either side.
        grid: whether tokens lie on a grid: hidden and output are ``(B, H, W, E)``.
        tokens: the only number of tokens that it takes, as of a window; ``None`` for any.
        heads, kv_heads: numbers of query heads and of key and value heads, where each of the latter
            serves a group of neighbouring query heads.
        reference: ``reference(module, hidden, real)`` gives the output of one item as rows of
            floats; ``hidden`` has rows of floats, and ``real`` says for each whether it is a token.
        paths: for a law that two methods of the module agree (``chunked_equals_recurrent``,
            ``absorbed_equals_expanded``), the names of both; each is called like ``forward``.
        sizes: ``sizes(size)`` gives the nearest legal E.
        conventions: which of several usual meanings it follows: ``positions``, ``hidden_slots``,
            ``internal_dtype`` and ``gradients``.
        same_as: the address of another subject with which it agrees.
        notes: remarks for the first lines of a report, such as what an adapter found by trying.
        settle: ``settle(spec)`` gives the spec completed by what calls of the module show; an
            adapter sets it, and it is called once, when the subject is looked up.
        formula, source, dtypes, laws, exempt, variants: as in :class:`ScoringSpec`.

    Raises:
        SpecError: a field has the wrong type, or a name is unknown.
    """

    kind: ClassVar[str] = "layer"

    name: str
    make: Callable[..., nn.Module]
    causal: bool = False
    accepts: tuple[str, ...] = ()
    cache: CacheSpec | None = None
    window: int | tuple[int, int] | None = None
    grid: bool = False
    tokens: int | None = None
    heads: int | None = None
    kv_heads: int | None = None
    extras: Callable[..., Mapping[str, Tensor]] | None = None
    reference: Callable[..., Any] | None = None
    paths: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    sizes: Callable[[int], int] | None = None
    formula: str = ""
    source: str = ""
    dtypes: tuple[str, ...] | None = None
    laws: tuple[str, ...] = ()
    exempt: Mapping[str, str] = field(default_factory=dict)
    conventions: Mapping[str, Any] = field(default_factory=dict)
    same_as: str | None = None
    variants: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    settle: Callable[[LayerSpec], LayerSpec] | None = None

    def __post_init__(self) -> None:
        freeze_common(self)
        freeze_tuple(self, "accepts", LAYER_ACCEPTS)
        freeze_tuple(self, "notes")
        freeze_conventions(self, LAYER_DEFAULTS)
        check_same_as(self)
        self._check("causal", isinstance(self.causal, bool), "True or False")
        is_valid = isinstance(self.grid, bool) and not (self.grid and self.accepts)
        self._check("grid", is_valid, "True or False, and True only where accepts is empty")
        self._check("window", _is_window(self.window), "a number of positions, (before, after)")
        for attribute in ("tokens", "heads", "kv_heads"):
            count, what = getattr(self, attribute), attribute.removeprefix("kv_")
            self._check(attribute, count is None or is_count(count), f"a number of {what}")
        divides = self.kv_heads is None or (
            self.heads is not None and self.heads % self.kv_heads == 0
        )
        self._check("kv_heads", divides, "a divisor of heads")
        has_extras = "extras" in self.accepts
        self._check(
            "extras", has_extras == callable(self.extras), "a function, if accepts names extras,"
        )
        object.__setattr__(self, "paths", ReadOnly(self.paths))
        for law, names in self.paths.items():
            is_pair = isinstance(names, tuple) and [type(name) for name in names] == [str, str]
            self._check("paths", law in PATHS and is_pair, f"two methods for each of {PATHS}")
        self._check("cache", isinstance(self.cache, CacheSpec | None), "a CacheSpec")
        require(
            self,
            self.cache is None or "cache" in self.accepts,
            "it has a cache, but does not accept one: write accepts=('cache',), with 'padding_mask'"
            " where it takes that too",
        )

    def _check(self, name: str, condition: bool, expected: str) -> None:
        value = getattr(self, name)
        or_none = "" if name in ("causal", "grid") else " or None"
        require(self, condition, f"{name} should be {expected}{or_none}, not {value!r}")
