"""Mistakes in how options are read: windows, soft caps, sinks, slopes, stored scales and groups."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench.checking.cause.textbook_call import Call, Named, Topic
from attnbench.oracle.textbook import restored, scale_of, stages_of, textbook_output

_BLOCKS = (2, 4, 8, 16, 32, 64, 128)
_TIMES = (2, 3, 4, 8)


def _ignored(call: Call) -> Named:
    for name in ("softcap", "sinks", "alibi_slopes", "window_size", "k_scale", "v_scale"):
        if call.scaled and getattr(call.inputs, name) is not None:
            yield f"{name}_ignored", textbook_output(call.inputs.replace(**{name: None}))


def _windows(call: Call) -> Named:
    """A window with other edges, or with rows and keys counted otherwise."""
    if call.inputs.window_size is None:
        return
    before, after = call.inputs.window_size
    open_keys = stages_of(call.inputs.replace(window_size=None)).allowed
    q_len, kv_len = call.lengths
    corner = torch.arange(kv_len) - torch.arange(q_len)[:, None]
    ahead = corner - (kv_len - q_len)

    def seen(least: int, most: int) -> Tensor:
        inside = ahead >= -least if least >= 0 else torch.ones_like(ahead, dtype=torch.bool)
        return call.allow(open_keys & inside & ((ahead <= most) | (most < 0)))

    for step in (-1, 1):
        if before + min(step, 0) >= 0:
            yield "window_size_one_off", seen(before + step, after)
        if after + min(step, 0) >= 0:
            yield "window_size_one_off", seen(before, after + step)
    if -1 in (before, after):
        yield (
            "window_size_takes_no_limit_as_a_number",
            call.allow(open_keys & (ahead >= -before) & (ahead <= after)),
        )
    yield "window_size_exchanged", seen(after, before)
    yield "window_size_lost_behind", seen(-1, after)
    yield "window_size_lost_ahead", seen(before, -1)
    for one, other in ((corner, corner), (corner, ahead), (ahead, corner)):  # both edges, or one
        inside = (one >= -before) | (before < 0)
        inside &= (other <= after) | (after < 0)
        yield "window_size_from_the_top_left", call.allow(open_keys & inside)


def _raw(call: Call) -> tuple[Tensor, float]:
    """The scores without a soft cap, and the scale in them."""
    return stages_of(call.inputs.replace(softcap=None)).scores, scale_of(call.inputs)


def _softcaps(call: Call) -> Named:
    cap, stages = call.inputs.softcap, call.stages
    if cap is None or not call.scaled:
        return
    scores = stages.scores.masked_fill(~stages.allowed, -cap)
    every = torch.ones_like(stages.allowed)
    yield "softcap_after_the_mask", stages.replace(scores=scores, allowed=every).output
    raw, scale = _raw(call)
    ways = {
        "softcap_not_multiplied": (raw / cap).tanh(),
        "softcap_of_the_score_itself": raw * (raw / cap).tanh(),
        "softcap_not_divided": cap * raw.tanh(),
        "softcap_clips": raw.clamp(-cap, cap),
        "softcap_twice": cap * (cap * (raw / cap).tanh() / cap).tanh(),
    }
    if scale:
        bare = raw / scale
        ways["softcap_before_the_scale"] = cap * (bare / cap).tanh() * scale
        ways["softcap_in_place_of_the_scale"] = cap * (bare / cap).tanh()
    for name, other in ways.items():
        yield name, call.score(other)
    bias = stages.bias
    capped = cap * ((raw + bias) / cap).tanh()
    yield "softcap_after_the_bias", stages.replace(scores=capped, bias=bias * 0).output


def _sinks(call: Call) -> Named:
    sinks, stages = call.stages.sinks, call.stages
    if sinks is None:
        return
    ways = {
        "sinks_scaled": sinks * scale_of(call.inputs),
        "sinks_subtracted": -sinks,
        "sinks_of_other_heads": sinks.flip(-3),
        "sinks_of_the_first_head": sinks[:1].expand_as(sinks),
        "sinks_of_base_two": sinks * math.log(2.0),
    }
    for name, other in ways.items():
        yield name, stages.replace(sinks=other).output
    by_block = {f"by_block_{block}": -(-call.lengths[1] // block) for block in _BLOCKS}
    for way, count in {**by_block, **{f"times_{n}": n for n in _TIMES}}.items():
        if count > 1:
            yield f"sinks_counted_{way}", stages.replace(sinks=sinks + math.log(count)).output
    powers, _ = stages.powers
    sums = powers.sum(-1, keepdim=True)
    yield "sinks_not_shifted", call.pool(powers / (sums + sinks.exp()))
    yield "sinks_added_to_the_sum", call.pool(powers / (sums + sinks))


def _slopes(call: Call) -> Named:
    slopes, stages = call.inputs.alibi_slopes, call.stages
    if slopes is None or not call.scaled:
        return
    others = stages_of(call.inputs.replace(alibi_slopes=None)).bias
    q_len, kv_len = call.lengths
    corner = torch.arange(kv_len) - torch.arange(q_len)[:, None]
    ahead, each = corner - (kv_len - q_len), slopes.detach().cpu().double()[..., None, None]
    distance = ahead.abs()
    raw, scale = _raw(call)
    ways = {
        "alibi_slopes_added": each * distance,
        "alibi_slopes_scaled": -each * distance * scale,
        "alibi_slopes_of_base_two": -each * distance * math.log(2.0),
        "alibi_slopes_from_the_top_left": -each * corner.abs(),
        "alibi_slopes_of_other_heads": -each.flip(-3) * distance,
        "alibi_slopes_of_the_first_head": -each[:1] * distance,
        "alibi_slopes_signed": each * ahead,
        "alibi_slopes_by_squares": -each * distance.square(),
    }
    for name, bias in ways.items():
        yield name, stages.replace(bias=others + bias).output
    if (cap := call.inputs.softcap) is not None and bool(others.any()):  # or softcap is after all
        capped = cap * ((raw - each * distance) / cap).tanh()
        yield "alibi_slopes_within_softcap", stages.replace(scores=capped, bias=others).output


def _scales(call: Call) -> Named:
    """Scales of what is stored that are lost, exchanged or laid over it otherwise."""
    inputs = call.inputs
    if not call.scaled:
        return
    for name in ("k_scale", "v_scale"):
        scale = getattr(inputs, name)
        if scale is None:
            continue
        ways = {
            "divides": 1 / torch.where(scale == 0, 1.0, scale),
            "twice": scale * scale,
            "of_the_first": scale.reshape(-1)[:1].reshape([1] * scale.dim()),
        }
        if scale.dim() > 3:
            ways["of_the_first_head"] = scale[..., :1, :, :]
        turned = [scale.roll(1, axis) for axis, count in enumerate(scale.shape) if count > 1]
        for way, other in (*ways.items(), *(("of_another", other) for other in turned)):
            yield f"{name}_{way}", textbook_output(inputs.replace(**{name: other}))
    if inputs.k_scale is not None and inputs.v_scale is not None:
        given = {"k_scale": inputs.v_scale, "v_scale": inputs.k_scale}
        yield "stored_scales_exchanged", textbook_output(inputs.replace(**given))
        yield "k_scale_is_that_of_values", textbook_output(inputs.replace(k_scale=inputs.v_scale))
        yield "v_scale_is_that_of_keys", textbook_output(inputs.replace(v_scale=inputs.k_scale))
        neither = inputs.replace(k_scale=None, v_scale=None)
        yield "stored_scales_ignored", textbook_output(neither)


def _scales_of_products(call: Call) -> Named:
    """A scale of keys or values that multiplies what is made of them, and more than that."""
    inputs = call.inputs
    if not call.scaled or inputs.enable_gqa:
        return
    if inputs.v_scale is not None and bool((inputs.v_scale > 0).all()):
        bare = stages_of(inputs.replace(v_scale=None))
        shares = inputs.v_scale.cpu().double().log().mT
        yield "v_scale_in_the_sum", bare.replace(bias=bare.bias + shares).output
    if inputs.k_scale is not None:
        scale, stages = inputs.k_scale.cpu().double(), call.stages
        scale = scale.mT if scale.dim() > 1 else scale
        yield "k_scale_times_the_bias", stages.replace(bias=stages.bias * scale).output


def _scales_of_groups(call: Call) -> Named:
    """A scale by head that is repeated over the heads of the query in the wrong order."""
    inputs = call.inputs
    if not inputs.enable_gqa or not call.scaled:
        return
    count, heads = inputs.query.shape[-3], inputs.key.shape[-3]
    right, tiled = torch.arange(count) // (count // heads), torch.arange(count) % heads

    def laid(name: str, order: Tensor) -> Tensor | None:
        tensor: Tensor | None = getattr(inputs, name)
        has_heads = tensor is not None and tensor.dim() > 2 and tensor.shape[-3] == heads
        return tensor.index_select(-3, order) if has_heads and tensor is not None else tensor

    names = ("key", "value", "k_scale", "v_scale")
    for other in ("k_scale", "v_scale") if inputs.k_scale is not inputs.v_scale else ():
        parts = {name: laid(name, tiled if name == other else right) for name in names}
        yield f"{other}_tiled", textbook_output(inputs.replace(enable_gqa=False, **parts))


def _groups(call: Call) -> Named:
    if not call.inputs.enable_gqa or not call.scaled:
        return
    inputs = restored(call.inputs)
    count, heads = inputs.query.shape[-3], inputs.key.shape[-3]
    right, tiled = torch.arange(count) // (count // heads), torch.arange(count) % heads
    first = torch.zeros(count, dtype=torch.long)
    ways = {
        "groups_tiled": (tiled, tiled),
        "groups_tiled_in_keys": (tiled, right),
        "groups_tiled_in_values": (right, tiled),
        "groups_of_the_first": (first, first),
    }
    for name, orders in ways.items():
        pairs = zip((inputs.key, inputs.value), orders, strict=True)
        key, value = (t.index_select(-3, order) for t, order in pairs)
        expanded = inputs.replace(key=key, value=value, enable_gqa=False)
        yield name, textbook_output(expanded)


TOPICS: tuple[Topic, ...] = (
    _ignored,
    _windows,
    _softcaps,
    _sinks,
    _slopes,
    _scales,
    _scales_of_products,
    _scales_of_groups,
    _groups,
)
