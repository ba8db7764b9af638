"""Presets: what a usual style of call declares of its callees; what it leaves open, calls show."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from attnbench import MechanismSpec, Sizes
from attnbench.errors import StyleError
from attnbench.styles import (
    LAYOUTS,
    SCALED_DOT,
    SETTINGS,
    Keywords,
    adapted_spec,
    keywords_of,
    name_of,
    renames,
)
from attnbench_plugins.adapters.adaptation import making
from attnbench_plugins.adapters.binding import FIRST, SECOND, Binding, Mask, is_plain
from attnbench_plugins.adapters.trials.found_conventions import (
    causality,
    coarseness,
    empty_rows,
    hiding,
    lets_nan_through,
    mask_value,
)
from attnbench_plugins.adapters.trials.small_calls import Callee, Calls, close
from attnbench_plugins.adapters.usual_arguments import fitted

_HALF = ("bfloat16", "float16")
_TELLING = {"mask", "lens", "lengths", "seqlens", "positions", "ids"}
"""Parts of the names of arguments that these styles do not pass, and a report is to name."""

_SECOND = {
    "BHLS": ", and the weights come with it",
    "BHL": ", and the log-sum-exp of the scores comes with it",
    "BLH": ", and the log-sum-exp of the scores comes with it, as (B, L, H)",
    "": "; what comes with it is not looked at",
}
"""What is said of what comes with an output, by its axes."""
_HEADS = 2
_PADDING = "key_padding_mask"


@renames
def sdpa(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a function like ``torch.nn.functional.scaled_dot_product_attention``.

    The function gets ``(B, H, L, E)``, with other leading sizes folded, and those keywords that its
    signature has. ``is_causal`` is aligned to the top left, as torch documents it; if the function
    does not accept a mask together with it, both are passed as one mask. Dropout is used only in
    training.

    Args:
        function: ``function(query, key, value, ...)``, or a module with such a forward.
        fields: fields of the spec, which override the adapter's; conventions and exemptions are
            added to its own. Pass ``reference=None`` if it is not scaled dot-product attention.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    return _of_function("sdpa", function, fields)


@renames
def flash(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a function of ``(B, L, H, E)``, like flash-attention's.

    The function gets those keywords that its signature has. Causality is aligned to the bottom
    right, and a row without keys gives zeros, as flash-attention documents since 2.1. Grouped heads
    are used if a small call with them succeeds.

    Args:
        function: ``function(q, k, v, ...)``, perhaps with ``causal=False``, or a module with such a
            forward.
        fields: fields of the spec, as for :func:`sdpa`.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    return _of_function("flash", function, fields)


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
    sizes = _sizes(make, several)

    def made(query_size: int, key_size: int, value_size: int) -> Any:
        if held:
            return copy.deepcopy(make)
        given: dict[str, Any] = {"embed_dim": query_size, "num_heads": _HEADS}
        given |= {"batch_first": True} if "batch_first" in taken.names else {}
        if key_size != query_size and ("kdim" in taken.names or taken.open):
            given |= {"kdim": key_size, "vdim": query_size}
        return make(**given)  # a subclass may have them in another order

    callee = Callee(made, sizes(Sizes((), 1, 1, 2 * _HEADS, 2 * _HEADS, 2 * _HEADS)).query_size)
    sample = callee.at()
    forward = keywords_of(sample) or Keywords(())
    if not (forward.open or "attn_mask" in forward):
        raise StyleError(
            f"{name_of(make)} cannot be called as multihead: its forward has no attn_mask."
        )
    calls = _of_module(callee, sample, forward)
    accepts = {"return_weights": calls.binding.weights, "valid_lens": _PADDING in forward}
    learned = getattr(sample, "bias_k", None) is not None
    extra = int(learned) + int(bool(getattr(sample, "add_zero_attn", False)))
    known = {
        "make": making(callee, calls.binding, name_of(make)),
        "formula": "W_o [head_1; …; head_H] + b, head_i = softmax(W_qⁱq·W_kⁱk / √d) W_vⁱv",
        "equal_sizes": not several,
        "sizes": sizes,
        "accepts": tuple(name for name, given in accepts.items() if given),
        "conventions": {
            "empty_rows": "nan",
            "hidden_slots": "finite",
            **({} if _takes_floating(calls) else {"masks": ("boolean", "lengths")}),
            **({"extra_keys": extra} if extra else {}),
            **coarseness(calls),
        },
    }
    return adapted_spec("multihead", make, known, fields)


def _of_module(callee: Callee, sample: Any, forward: Keywords) -> Calls:
    """Calls of a module; which axis is first, and whether weights come, is asked."""
    mask = forward.named.get("attn_mask", "attn_mask")
    has_padding = forward.open or _PADDING in forward
    masks = {_PADDING: Mask("BS", "hides", floating=True)} if has_padding else {}
    asked = forward.named.get("return_weights")
    binding = Binding(
        shape="attention",
        layout="BLE",
        memory="BSE",
        roles={
            "0": "query",
            "1": "key",
            "2": "value",
            mask: "mask",
            **dict.fromkeys(masks, "padding"),
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


def _of_function(style: str, function: Any, fields: dict[str, Any]) -> MechanismSpec:
    """The spec of a function of query, key and value, by the layout of its style."""
    keywords = fitted(function, style)

    def own(*sizes: int) -> Any:
        return copy.deepcopy(function) if isinstance(function, nn.Module) else function

    calls = Calls(Callee(own, width=4), _declared(style, keywords))
    known: dict[str, Any] = {**SCALED_DOT}
    conventions: dict[str, Any] = {}
    notes = _dtypes(calls, known)
    known["accepts"] = _accepted(style, keywords, calls)
    if style == "flash":
        known["sizes"] = one_head_size
    elif "is_causal" in keywords:
        conventions["causal"] = "top_left"
    calls = _with_second(calls, known, notes)
    passed = {*keywords.names[:3], *keywords.named.values()} - {_PADDING}
    left = [name for name in keywords.names if name not in passed and _TELLING & {*name.split("_")}]
    if left:
        notes.append(f"{' and '.join(left)} not passed: what that hides or moves is not looked at")
    if calls.binding.masks:
        calls = _with_form(calls, notes)
        conventions |= _of_masks(calls)
    else:
        conventions["masks"] = ()
        if "is_causal" not in keywords and calls() is None and causality(calls):
            conventions["causal"] = "always"
            known["sizes"] = lambda sizes: one_head_size(sizes.replace(kv_len=sizes.q_len))
            notes.append("it is causal and takes as many queries as keys only (found by trying)")
    conventions |= coarseness(calls)
    known |= {
        "make": making(calls.callee, calls.binding, name_of(function)),
        "conventions": conventions,
    }
    return adapted_spec(style, function, known, fields, tuple(notes))


def _declared(style: str, keywords: Keywords) -> Binding:
    """How a style calls a function with these arguments."""
    layout, memory = LAYOUTS[style]
    named = {
        own: SETTINGS[meaning] for meaning, own in keywords.named.items() if meaning in SETTINGS
    }
    if style == "flash":  # it has no word for groups
        named = {own: role for own, role in named.items() if role != "gqa"}
    mask = keywords.named.get("attn_mask")
    masks = {} if mask is None else {mask: Mask("..LS", "shows", floating=True)}
    return Binding(
        shape="attention",
        layout=layout,
        memory=memory,
        roles={"0": "query", "1": "key", "2": "value", **named, **dict.fromkeys(masks, "mask")},
        masks=masks,
        output=(FIRST, layout),
    )


def _accepted(style: str, keywords: Keywords, calls: Calls) -> tuple[str, ...]:
    """What it may be asked for; its weights apart."""
    accepts = [name for name in SETTINGS if name in keywords and name != "return_weights"]
    if style == "flash":
        accepts = [name for name in accepts if name != "enable_gqa"]
        query, key, value = calls.tensors()
        grouped = calls([torch.cat([query, query], 1), key, value], enable_gqa=True)
        accepts += [] if grouped is None else ["enable_gqa"]
    dropped = calls.replace(training=True)(dropout_p=0.1)
    if calls() is not None and dropped is None:  # it takes a module there
        accepts = [name for name in accepts if name != "dropout_p"]
    return tuple(accepts)


def _dtypes(calls: Calls, known: dict[str, Any]) -> list[str]:
    """Leave out what a function of half types raises for; the calls go on in one of them."""
    if calls() is not None:
        return []
    raised = calls.raised
    taken = tuple(name for name in _HALF if calls(dtype=name) is not None)
    if not taken:
        return []
    calls.dtype, known["dtypes"] = taken[0], taken
    return [f"not tried in float32 and float64, where it raises {raised}"]


def _with_second(calls: Calls, known: dict[str, Any], notes: list[str]) -> Calls:
    """The calls with what comes beside the output bound, if it is weights or log-sums.

    A vector that is added to all keys, which leaves the weights and what is made of them alone,
    changes a log-sum.
    """
    query, key, value = calls.tensors()
    found, moved = (
        calls.replace(weights=(SECOND, "")).both([query, k, value]) for k in (key, key + 1.0)
    )
    if found is None or (second := found[1]) is None:
        return calls
    *lead, count = query.shape[:3]
    kinds = {(*lead, count, key.shape[2]): "BHLS", (*lead, count): "BHL"}
    kinds[lead[0], count, lead[1]] = "BLH"
    kind = kinds.get(tuple(second.shape), "") if is_plain(second) else ""
    if len(kind) == 3 and (moved is None or close(second, moved[1])):
        kind = ""
    notes.append(f"its output is the first of what it returns{_SECOND[kind]}")
    if not kind:
        return calls
    if kind == "BHLS":
        known["accepts"] += ("return_weights",)
    else:
        known |= {"returns": ("output", "lse"), "laws": ("pools_values", "splits_merge")}
    return calls.replace(weights=(SECOND, kind))


def _with_form(calls: Calls, notes: list[str]) -> Calls:
    """The calls with masks as it takes them: of all items and heads, or with causality in them."""
    ((name, form),) = calls.binding.masks.items()
    query, key, _ = calls.tensors()
    mask = torch.ones(*query.shape[:-1], key.shape[-2], dtype=torch.bool)
    if calls(attn_mask=mask[0, 0]) is None and calls(attn_mask=mask) is not None:
        calls = calls.replace(masks={name: replace(form, axes="BHLS")})
        notes.append("masks are given as (B, H, L, S), since it raises for (L, S)")
    if calls.binding.layout == "BHLE" and "causal" in calls.binding.roles.values():
        tensors = calls.tensors(5, 5, (4, 4, 3))  # of a size for which torch raises
        both = calls(tensors, attn_mask=torch.ones(5, 5, dtype=torch.bool), is_causal=True)
        calls = calls.replace(one_mask=both is None)
    return calls


def _of_masks(calls: Calls) -> dict[str, Any]:
    """What calls show of masks; added to the scores, a finite number leaves more than the mean."""
    found: dict[str, Any] = {}
    if not _takes_floating(calls):
        found["masks"] = ("boolean", "lengths")
    if (low := mask_value(calls)) is not None:
        found["mask_value"] = low
        is_mean = "masks" in found and empty_rows(calls, hiding(calls, 0) or {}) == "mean"
        found["empty_rows"] = "mean" if is_mean else "nan"
    shown = calls(**(hiding(calls, 1) or {}))
    if shown is not None and lets_nan_through(calls):  # 0 times NaN is NaN, as in torch's own
        found["hidden_slots"] = "finite"
    return found


def _takes_floating(calls: Calls) -> bool:
    """Whether it adds floating masks; false where it raises, or hides the keys where they are 0.

    A function may take floating ones only without gradients, where it makes another call.
    """
    mask = torch.eye(1, 7).expand(5, 7)
    boolean, floating = calls(attn_mask=mask.bool()), calls(attn_mask=mask)
    if boolean is None:
        return True
    if floating is None or calls.replace(graded=True)(attn_mask=mask) is None:
        return False
    first = calls.tensors()[2][..., :1, :].to(boolean)
    return not (close(boolean, first) and close(floating, first))


def one_head_size(sizes: Sizes) -> Sizes:
    """The nearest sizes with values as wide as queries."""
    return sizes.replace(value_size=sizes.query_size)


def _sizes(make: Any, several: bool) -> Callable[[Sizes], Sizes]:
    """The nearest sizes with a whole number of features a head; those of a module that is there."""
    held = isinstance(make, nn.Module)
    width = getattr(make, "embed_dim", None) if held else None
    if held and not isinstance(width, int):
        raise StyleError(
            f"{name_of(make)} cannot be called as multihead: it has no embed_dim to tell its "
            "sizes; give its class, or a function that makes it."
        )
    if held and (getattr(make, "vdim", None) or width) != width:
        raise StyleError(
            f"{name_of(make)} has vdim={make.vdim} and embed_dim={width}, but the output is as "
            "wide as the value here; give one with vdim=None."
        )

    def legal(sizes: Sizes) -> Sizes:
        own = width or -(-sizes.query_size // _HEADS) * _HEADS
        key_size = sizes.key_size if several else own
        if held:
            key_size = getattr(make, "kdim", None) or own
        return sizes.replace(query_size=own, key_size=key_size, value_size=own)

    return legal
