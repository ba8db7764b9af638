"""Models of transformers as layers: tiny, of random parameters, with that library's own caches."""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec, ShapeError, UsageError
from attnbench_peers.styles.flex import uncompiled

CACHES = ("dynamic", "static", "quantized")
"""Kinds of cache. What a configuration says of sliding windows, the first two follow."""

LOSSY = (
    "cache_operations_combine",
    "calls_may_be_cut_anywhere",
    "cropped_slots_are_forgotten",
    "padded_rows_decode_as_alone",
    "selected_rows_go_on_as_their_sequences",
)
"""Invariants that compare what was kept with what was not, or was kept in another batch or cut.

A difference in the last bit makes one of a whole step of the quantisation at some place.
"""

_PASSED_AS = ("cache", "past_key_values")
"""The library's names of the argument for a cache: since 5.24, and before."""

_SLOTS = 48

_LOSSY = "what is quantised differs from what is exact, in the first call too (transformers#35185)"

_NO_COPY = "torch copies no tensors of optimum-quanto, and raises RuntimeError"


class TinyModel(nn.Module):
    """A model called on hidden states, in the place of the embeddings of its tokens.

    Args:
        model: a model of transformers; ``forward`` takes ``inputs_embeds``.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        model.set_input_embeddings(nn.Identity())  # no token is looked up, so that none is learned
        self.model: Any = model
        self.names = tuple(inspect.signature(model.forward).parameters)
        self.cache_name = next((name for name in _PASSED_AS if name in self.names), None)

    def forward(
        self, hidden: Tensor, padding_mask: Tensor | None = None, cache: Any = None
    ) -> Tensor:
        """The last hidden states ``(B, L, E)``."""
        past = 0 if cache is None else int(cache.get_seq_length())
        given: dict[str, Any] = {"inputs_embeds": hidden}
        if padding_mask is not None:
            given["attention_mask"] = padding_mask.long()
        if "position_ids" in self.names:
            slots = torch.arange(past + hidden.shape[1], device=hidden.device)[None]
            where = slots if padding_mask is None else (padding_mask.cumsum(-1) - 1).clamp_min(0)
            given["position_ids"] = where[:, past:].expand(hidden.shape[0], -1)
        if self.cache_name is not None:
            given |= {self.cache_name: cache, "use_cache": cache is not None}
        elif cache is not None:
            raise UsageError(
                f"forward of {type(self.model).__name__} takes no cache (it takes "
                f"{', '.join(self.names)}): give adapters.transformers(config, cache=None)."
            )
        flexible = self.model.config._attn_implementation == "flex_attention"
        with uncompiled() if flexible else contextlib.nullcontext():
            output: Tensor = self.model(**given).last_hidden_state
        return output


def transformers(
    config: Any,
    *,
    cache: str | None = "dynamic",
    attention: str = "sdpa",
    cache_options: Mapping[str, Any] | None = None,
    **fields: Any,
) -> LayerSpec:
    """A layer of a model of transformers, made of a configuration without a download.

    Rows of a cache are selected, and slots removed, by the library's own methods; a crop that it
    does not support is refused, and so is a selection from a cache that was cropped to nothing.
    FlexAttention runs without its compiler and forward only, as it does on the CPU. Positions are
    given, counted from the first real token. Dropout is off. float64 is left out, as norms and
    rotations there compute in float32 whatever is given.

    Args:
        config: a configuration; with a hidden size of 16 or less, all invariants have cases.
        cache: one of :data:`CACHES`; ``None`` for a model without one, as encoders are.
        attention: ``eager``, ``sdpa``, ``flex_attention`` or another name that the library knows.
        cache_options: further arguments of the cache, such as ``backend`` of a quantised one, whose
            ``q_group_size`` is by default the size of a head.
        fields: fields of :class:`attnbench.LayerSpec`, such as ``name`` and ``exempt``. A model
            with a cache is causal unless it says otherwise.

    Raises:
        UsageError: transformers is not installed, or the kind of cache is unknown.
    """
    try:
        from transformers import AutoModel
    except ImportError as error:
        raise UsageError(
            f"adapters.transformers needs transformers, which cannot be imported: {error}. "
            "Install it with: pip install transformers"
        ) from error
    if cache not in (None, *CACHES):
        raise UsageError(f"cache={cache!r} is none of {', '.join(CACHES)}, or None.")
    text = config.get_text_config()

    def make(size: int) -> TinyModel:
        if size != text.hidden_size:
            raise ShapeError(f"size={size}, but the configuration says {text.hidden_size}.")
        own = _without_dropout(config)
        return TinyModel(AutoModel.from_config(own, attn_implementation=attention).float())

    known: dict[str, Any] = {
        "name": f"{config.model_type}_{cache or 'uncached'}_{attention}",
        "make": make,
        "causal": cache is not None,
        "accepts": ("padding_mask",) if cache is None else ("padding_mask", "cache"),
        "cache": None if cache is None else cache_spec(cache, cache_options or {}),
        "window": _window(text),
        "sizes": lambda size: text.hidden_size,
        "dtypes": ("float32", "bfloat16", "float16"),
        "laws": ("left_padding_is_inert",),
        "conventions": {"gradients": attention != "flex_attention"},  # on the CPU it has none
        "exempt": {},
    }
    if cache == "quantized":
        known["exempt"] |= {**dict.fromkeys(LOSSY, _LOSSY), "caches_are_independent": _NO_COPY}
    for name in ("conventions", "exempt"):
        fields[name] = {**known[name], **fields.get(name, {})}
    return LayerSpec(**{**known, **fields})


def _without_dropout(config: Any) -> Any:
    """A copy whose rates of dropout are 0, so that training can be compared with evaluation."""
    own = copy.deepcopy(config)
    for name, value in own.to_dict().items():
        if isinstance(value, float) and ("dropout" in name or name.endswith("pdrop")):
            setattr(own, name, 0.0)
    return own


def _window(config: Any) -> int | None:
    """How far a model sees whose blocks all have a sliding window."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or config.num_hidden_layers * ["sliding_attention"]
    if not window or any(kind != "sliding_attention" for kind in kinds):
        return None
    return len(kinds) * (int(window) - 1) + 1


def cache_spec(kind: str, options: Mapping[str, Any]) -> CacheSpec:
    """How a kind of cache of that library, one of :data:`CACHES`, is made and changed."""
    from transformers import cache_utils

    def new(module: TinyModel, batch_size: int) -> Any:
        config = module.model.config
        if kind == "dynamic":
            return cache_utils.DynamicCache(config=config, **options)
        if kind == "static":
            return cache_utils.StaticCache(**{"config": config, "max_cache_len": _SLOTS, **options})
        text = config.get_text_config()
        size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        own = {"backend": "quanto", "q_group_size": size}  # which divides a call of any length
        return cache_utils.QuantizedCache(config=config, **{**own, **options})

    return CacheSpec(
        new=new,
        select=_select,
        crop=_crop,
        length=lambda cache: int(cache.get_seq_length()),
        capacity=int(options.get("max_cache_len", _SLOTS)) if kind == "static" else None,
    )


def _select(cache: Any, index: Tensor) -> None:
    """Keep rows, by the first of the library's two methods that every block has.

    Raises:
        NotImplementedError: it was cropped to nothing; the library's methods then do nothing, and
            the next call finds the old number of rows.
    """
    kept = [getattr(layer, "keys", None) for layer in cache.layers]
    if any(k is not None and k.dim() == 4 and not k.shape[-2] for k in kept):
        raise NotImplementedError("the library selects no rows of a cache that holds no slots")
    if all(hasattr(layer, "batch_select_indices") for layer in cache.layers):
        cache.batch_select_indices(index)
    else:
        cache.reorder_cache(index)


def _crop(cache: Any, length: int) -> Any:
    """Another cache with the first slots, so that a refusal half-way leaves this one as it was."""
    remove = int(cache.get_seq_length()) - length
    if not remove:
        return cache
    if not all(hasattr(layer, "crop") for layer in cache.layers):
        raise NotImplementedError("a block's cache has no crop")
    if not all(getattr(layer, "is_croppable", True) for layer in cache.layers):
        raise NotImplementedError("is_croppable of a block's cache is False")
    try:
        cropped = copy.deepcopy(cache)  # of quantised tensors torch makes none
        cropped.crop(-remove)
    except RuntimeError as error:
        raise NotImplementedError(str(error)) from error
    return cropped
