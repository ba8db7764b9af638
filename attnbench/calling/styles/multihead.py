"""Adapters of modules with projections of their own: ``nn.MultiheadAttention`` and its kind."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.attention.masks import valid_lens_mask
from attnbench.calling.adapted import name_of, refusals, spec_of
from attnbench.calling.keywords import Keywords, keywords_of
from attnbench.calling.renaming import renames
from attnbench.calling.results import output_and_more
from attnbench.calling.styles.constructors import HEADS, whole_heads
from attnbench.calling.styles.fitting import fitted
from attnbench.calling.turned_masks import for_multihead
from attnbench.errors import StyleError
from attnbench.specs import MechanismSpec, Sizes

_PADDING = "key_padding_mask"


@renames
def multihead(make: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """A spec of ``nn.MultiheadAttention`` and its kind, in whose masks True means hidden.

    It is made for ``embed_dim`` = Eq = Ev with two heads, batch first where it can be; keys of
    another size take ``kdim``. Lengths, and a mask of one row for all queries, go in as
    ``key_padding_mask``, the former also beside an ``attn_mask``. What raises for a floating mask,
    and not for a boolean one, gets boolean ones.

    Args:
        make: ``make(embed_dim, num_heads, ...)``, a class or a function such as a
            ``functools.partial`` of one; or a module that is there already, whose sizes are kept.
        fields: fields of the spec, in place of what the adapter knows; conventions and exemptions
            are added to its own.

    Raises:
        StyleError: it is not callable, or takes other arguments.
    """
    sizes: Callable[[Sizes], Sizes]
    if isinstance(make, nn.Module):
        keywords, several, sizes = Keywords(()), True, _fixed(make)
    else:
        keywords = fitted(make, "multihead")
        several = {"kdim", "vdim"} <= set(keywords.names) or keywords.open
        sizes = whole_heads if several else _legal_for_one
    with torch.random.fork_rng(devices=[]):
        sample = _made(make, keywords, 2 * HEADS, 2 * HEADS)
    forward = keywords_of(sample) or Keywords(())
    if not (forward.open or "attn_mask" in forward):
        raise StyleError(
            f"{name_of(make)} cannot be called as multihead: its forward has no attn_mask."
        )

    batch_first = _is_batch_first(sample)
    asked = {forward.named["return_weights"]: True} if "return_weights" in forward else {}
    output, weights = _sampled(sample, turned=not batch_first, **asked)
    gives_weights = output is None or weights is not None
    added, hides = (
        _sampled(sample, turned=not batch_first, attn_mask=torch.zeros(3, 5, dtype=dtype))[0]
        for dtype in (torch.float32, torch.bool)
    )
    boolean = {"masks": ("boolean", "lengths")} if added is None and hides is not None else {}

    def wrapped(query_size: int, key_size: int, value_size: int) -> nn.Module:
        return _Multihead(_made(make, keywords, query_size, key_size), forward, batch_first)

    wrapped.__qualname__ = name_of(make)
    known = {
        "make": wrapped,
        "formula": "W_o [head_1; …; head_H] + b, head_i = softmax(W_qⁱq·W_kⁱk / √d) W_vⁱv",
        "equal_sizes": not several,
        "sizes": sizes,
        "accepts": tuple(
            name
            for name, own in (("return_weights", "return_weights"), ("valid_lens", _PADDING))
            if own in forward and (name != "return_weights" or gives_weights)
        ),
        "conventions": {
            "empty_rows": "nan",
            "hidden_slots": "finite",
            **boolean,
            **({"extra_keys": extra} if (extra := _extra_keys(sample)) else {}),
        },
    }
    return spec_of("multihead", make, known, fields)


def _is_batch_first(module: nn.Module) -> bool:
    """Whether it takes ``(B, L, E)``: its ``batch_first`` or else a call of such a batch tells."""
    if hasattr(module, "batch_first"):
        return bool(module.batch_first)
    output, _ = _sampled(module)
    return isinstance(output, Tensor) and output.shape[:2] == (2, 3)


def _sampled(module: nn.Module, *, turned: bool = False, **asked: Any) -> tuple[Any, Any]:
    """What a call of two items with 3 queries and 5 keys gives; nothing if it raises."""
    width = getattr(module, "embed_dim", 2 * HEADS)
    tensors = (torch.zeros(2, length, width) for length in (3, 5, 5))
    given = [tensor.transpose(0, 1) if turned else tensor for tensor in tensors]
    with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]), torch.no_grad():
        return output_and_more(module(*given, **asked))
    return None, None


def _extra_keys(module: Any) -> int:
    """How many keys it adds: a learned one and one of zeros, where they are asked for."""
    learned = getattr(module, "bias_k", None) is not None
    return int(learned) + int(bool(getattr(module, "add_zero_attn", False)))


def _legal_for_one(sizes: Sizes) -> Sizes:
    """For a module that takes one size only."""
    legal = whole_heads(sizes)
    return legal.replace(key_size=legal.query_size)


def _fixed(module: nn.Module) -> Callable[[Sizes], Sizes]:
    width = getattr(module, "embed_dim", None)
    if not isinstance(width, int):
        raise StyleError(
            f"{name_of(module)} cannot be called as multihead: it has no embed_dim to tell its "
            "sizes; give its class, or a function that makes it."
        )
    key_size = getattr(module, "kdim", None) or width
    if (getattr(module, "vdim", None) or width) != width:
        raise StyleError(
            f"{name_of(module)} has vdim={module.vdim} and embed_dim={width}, but the output is as "
            "wide as the value here; give one with vdim=None."
        )

    def legal(sizes: Sizes) -> Sizes:
        return sizes.replace(query_size=width, key_size=key_size, value_size=width)

    return legal


def _made(make: Any, keywords: Keywords, query_size: int, key_size: int) -> nn.Module:
    """A module for Eq and Ek, or a copy of one that is there already."""
    if isinstance(make, nn.Module):
        return copy.deepcopy(make)
    given: dict[str, Any] = {"embed_dim": query_size, "num_heads": HEADS}
    takes = keywords.names
    if "batch_first" in takes:
        given["batch_first"] = True
    if key_size != query_size and ("kdim" in takes or keywords.open):
        given |= {"kdim": key_size, "vdim": query_size}
    module: nn.Module = make(**given)  # a subclass may have them in another order
    return module


class _Multihead(nn.Module):
    """A module of ``(B, L, E)`` or ``(L, B, E)``, with masks in which True means hidden."""

    def __init__(self, module: nn.Module, keywords: Keywords, batch_first: bool) -> None:
        super().__init__()
        self.callee, self.keywords, self.batch_first = module, keywords, batch_first

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output ``(..., L, Ev)``, and on request the heads' mean weights ``(..., L, S)``."""
        lead = tuple(query.shape[:-2])
        given = self._masks(attn_mask, valid_lens, (*query.shape[:-1], key.shape[-2]))
        if "return_weights" in self.keywords:
            given[self.keywords.named["return_weights"]] = return_weights
        flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value)]
        if not self.batch_first:
            flat = [tensor.transpose(0, 1) for tensor in flat]
        on_cpu = query.device.type == "cpu"
        with refusals(type(self.callee).__name__, masked=bool(given), on_cpu=on_cpu):
            found = self.callee(*flat, **given)
        output, weights = output_and_more(found)
        output = output if self.batch_first else output.transpose(0, 1)
        output = output.reshape(*lead, *output.shape[-2:])
        if not return_weights:
            return output  # type: ignore[no-any-return]
        return output, weights.reshape(*lead, *weights.shape[-2:])

    def _masks(
        self, mask: Tensor | None, lens: Tensor | None, shape: tuple[int, ...]
    ) -> dict[str, Any]:
        heads = getattr(self.callee, "num_heads", None)
        keys = None if lens is None else valid_lens_mask(lens, shape[:-2], *shape[-2:])
        if keys is not None and keys.shape[-2] != 1:  # lengths by query are no padding
            hidden = keys if mask is None else mask
            fill = False if hidden.dtype == torch.bool else -math.inf
            mask, keys = hidden.masked_fill(~keys, fill), None
        return for_multihead(
            mask,
            keys,
            shape,
            takes_padding=self.keywords.open or _PADDING in self.keywords,
            heads=heads if isinstance(heads, int) else None,
        )
