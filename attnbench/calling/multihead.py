"""The style of modules with projections of their own: ``nn.MultiheadAttention`` and its kind."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnbench.calling.adapted import name_of, spec_of
from attnbench.calling.attention_call import Attention
from attnbench.calling.binding import FIRST, SECOND, Binding, Mask
from attnbench.calling.choice import fitted
from attnbench.calling.keywords import Keywords, keywords_of
from attnbench.calling.renaming import renames
from attnbench.calling.trials import Callee, Calls
from attnbench.errors import StyleError
from attnbench.specs import MechanismSpec, Sizes

_HEADS = 2
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
    held = isinstance(make, nn.Module)
    taken = Keywords(()) if held else fitted(make, "multihead")
    several = held or {"kdim", "vdim"} <= {*taken.names} or taken.open
    sizes = _fixed(make) if isinstance(make, nn.Module) else _whole_heads(several)

    def made(query_size: int, key_size: int, value_size: int) -> nn.Module:
        return _made(make, taken, query_size, key_size)

    callee = Callee(made, getattr(make, "embed_dim", 2 * _HEADS) if held else 2 * _HEADS)
    sample = callee.at()
    forward = keywords_of(sample) or Keywords(())
    if not (forward.open or "attn_mask" in forward):
        raise StyleError(
            f"{name_of(make)} cannot be called as multihead: its forward has no attn_mask."
        )
    calls = _bound(callee, sample, forward)

    def wrapped(query_size: int, key_size: int, value_size: int) -> nn.Module:
        return Attention(made(query_size, key_size, value_size), calls.binding)

    wrapped.__qualname__ = name_of(make)
    accepts = {"return_weights": calls.binding.weights, "valid_lens": _PADDING in forward}
    learned = getattr(sample, "bias_k", None) is not None
    extra = int(learned) + int(bool(getattr(sample, "add_zero_attn", False)))
    known = {
        "make": wrapped,
        "formula": "W_o [head_1; …; head_H] + b, head_i = softmax(W_qⁱq·W_kⁱk / √d) W_vⁱv",
        "equal_sizes": not several,
        "sizes": sizes,
        "accepts": tuple(name for name, given in accepts.items() if given),
        "conventions": {
            "empty_rows": "nan",
            "hidden_slots": "finite",
            **({} if _takes_floating(calls) else {"masks": ("boolean", "lengths")}),
            **({"extra_keys": extra} if extra else {}),
        },
    }
    return spec_of("multihead", make, known, fields)


def _bound(callee: Callee, sample: Any, forward: Keywords) -> Calls:
    """Calls of it; which axis is first, and whether weights come, is asked."""
    mask = forward.named.get("attn_mask", "attn_mask")
    masks = {_PADDING: Mask("BS", "hides", floating=True)}
    if not (forward.open or _PADDING in forward):
        masks = {}
    asked = forward.named.get("return_weights")
    binding = Binding(
        shape="attention",
        layout="BLE",
        memory="BSE",
        roles={
            "0": "query",
            "1": "key",
            "2": "value",
            **dict.fromkeys(masks, "padding"),
            mask: "mask",
            **({} if asked is None else {asked: "return_weights"}),
        },
        masks={**masks, mask: Mask("GLS", "hides", floating=True)},
        output=(FIRST, "BLE"),
        values={} if asked is None else {asked: False},
    )
    calls = Calls(callee, binding)
    if not (sample.batch_first if hasattr(sample, "batch_first") else calls() is not None):
        calls = calls.replace(layout="LBE", memory="SBE", output=(FIRST, "LBE"))
    if asked is None:
        return calls
    weighed = calls.replace(weights=(SECOND, "BLS"))
    both = weighed.both()
    return calls if both is not None and both[1] is None else weighed


def _takes_floating(calls: Calls) -> bool:
    """Whether it takes a floating mask, or no boolean one either."""
    query, key, _ = calls.tensors()
    mask = torch.zeros(query.shape[-2], key.shape[-2])
    return calls(attn_mask=mask) is not None or calls(attn_mask=mask == 0) is None


def _whole_heads(several: bool) -> Callable[[Sizes], Sizes]:
    """The nearest sizes with a whole number of features a head; keys may have another size."""

    def legal(sizes: Sizes) -> Sizes:
        width = -(-sizes.query_size // _HEADS) * _HEADS
        key_size = sizes.key_size if several else width
        return sizes.replace(query_size=width, key_size=key_size, value_size=width)

    return legal


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
    return lambda sizes: sizes.replace(query_size=width, key_size=key_size, value_size=width)


def _made(make: Any, keywords: Keywords, query_size: int, key_size: int) -> nn.Module:
    """A module for Eq and Ek, or a copy of one that is there already."""
    if isinstance(make, nn.Module):
        return copy.deepcopy(make)
    given: dict[str, Any] = {"embed_dim": query_size, "num_heads": _HEADS}
    if "batch_first" in keywords.names:
        given["batch_first"] = True
    if key_size != query_size and ("kdim" in keywords.names or keywords.open):
        given |= {"kdim": key_size, "vdim": query_size}
    module: nn.Module = make(**given)  # a subclass may have them in another order
    return module
