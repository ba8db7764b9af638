"""Mistakes in the computation on visible keys: scores, softmax and pooling."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from attnbench.checking.cause.textbook_call import Call, Named, Topic
from attnbench.oracle.textbook import textbook_output

_BLOCKS = (8, 16, 32, 40, 48, 64, 80, 96, 128, 160, 256)
_NEXT_TO_ZERO = 1e-300
_ENDS = (*(2**n for n in range(3, 11)), 100, 127, 255, 1000)


def _keys(call: Call) -> Named:
    kv_len = call.lengths[1]
    slots, allowed = torch.arange(kv_len), call.stages.allowed
    ends = {f"keys_lost_beyond_{end}": end for end in _ENDS}
    ends |= {f"keys_lost_after_blocks_{block}": kv_len // block * block for block in _BLOCKS}
    for name, end in {**ends, "last_key_lost": kv_len - 1}.items():
        if 0 < end < kv_len:
            yield name, call.allow(allowed & (slots < end))
    yield "first_key_lost", call.allow(allowed & (slots > 0))
    for block in _BLOCKS:
        rest = kv_len % block
        if rest and kv_len > block:
            shared = (slots >= kv_len - block) & (slots < kv_len - rest)
            bias = call.stages.bias + shared * math.log(2.0)
            yield f"last_block_moved_back_{block}", call.stages.replace(bias=bias).output
    last_slot = (allowed * (slots + 1)).amax(-1, keepdim=True) - 1
    single = allowed.sum(-1, keepdim=True) < 2
    for kept in (single, single | allowed.all(-1, keepdim=True)):  # in all rows, or in ranges
        yield "last_open_key_lost", call.allow(allowed & ((slots != last_slot) | kept))


def _axes(call: Call) -> Named:
    stages = call.stages
    scores = stages.masked_scores
    if scores.dim() > 3:
        joint = scores.transpose(-3, -2)
        weights = joint.flatten(-2).softmax(-1).nan_to_num(0.0).reshape(joint.shape)
        yield "softmax_over_heads_and_keys", call.pool(weights.transpose(-3, -2))
    for axis in range(scores.dim() - 1):
        weights = scores.softmax(axis).nan_to_num(0.0).masked_fill(~stages.allowed, 0.0)
        yield f"softmax_over_dimension_{axis}", call.pool(weights)
        if axis == scores.dim() - 2:
            yield "softmax_over_the_queries", call.pool(weights)
    if scores.shape[-2] == scores.shape[-1] > 1:
        sums = (scores.logsumexp(-1, keepdim=True) - scores.amax(-1, keepdim=True)).exp().mT
        raw = (scores - scores.amax(-1, keepdim=True)).exp().nan_to_num(0.0)
        yield "sums_of_other_queries", call.pool(raw / sums.nan_to_num(1.0))


def _softmax(call: Call) -> Named:
    stages = call.stages
    weights, (powers, top) = stages.weights, stages.powers
    yield "softmax_twice", stages.replace(scores=weights, bias=stages.bias * 0).output
    yield (
        "softmax_of_base_two",
        stages.replace(scores=stages.scores * math.log(2), bias=stages.bias * math.log(2)).output,
    )
    yield "softmax_with_a_sink", call.pool(powers / (powers.sum(-1, keepdim=True) + (-top).exp()))
    yield "softmax_with_a_sink", call.pool(powers / (powers.sum(-1, keepdim=True) + 1))
    for epsilon in (1e-2, 1e-3):
        yield "softmax_with_epsilon", call.pool(powers / (powers.sum(-1, keepdim=True) + epsilon))
    # the last block of keys is filled up with zeros, in all calls or in those without masks; a soft
    # cap makes them of minus infinity
    cap = call.inputs.softcap
    filler, name = (0.0, "block") if cap is None else (-cap, "capped_block")
    for block in _BLOCKS:
        zeros = -call.lengths[1] % block * (filler - top).exp()
        output = call.pool(powers / (powers.sum(-1, keepdim=True) + zeros))
        yield f"last_{name}_filled_up_{block}", output
        if bool(stages.allowed.all()):
            yield f"open_{name}_filled_up_{block}", output
    yield "weights_not_normalised", call.pool(powers)
    logs = (weights.clamp_min(1e-300)).log().masked_fill(~stages.allowed, 0.0)
    yield "softmax_is_log_softmax", call.pool(logs)


_UNITS = (1.0, math.log(2.0), 1 / math.log(2.0))


def _merges(call: Call) -> Named:
    """Attention over parts of the keys, merged by their mean, by how many keys they have or by
    their maxima, or over two parts by log-sums in other units.
    """
    stages, (q_len, kv_len) = call.stages, call.lengths
    scores = stages.masked_scores
    halves = [[cut] for cut in {kv_len // 2, (kv_len + 1) // 2, kv_len - q_len} if 0 < cut < kv_len]
    sizes = {-(-kv_len // 3), -(-kv_len // 4), *_BLOCKS}
    blocks = [[*range(size, kv_len, size)] for size in sizes if 1 < size < kv_len]
    for cuts in (*halves, *blocks):
        parts = scores.tensor_split(cuts, -1)
        softmaxes = [part.softmax(-1).nan_to_num(0.0) for part in parts]
        counts = torch.stack([part.isfinite().sum(-1, keepdim=True) for part in parts]).double()
        tops = torch.stack([part.amax(-1, keepdim=True) for part in parts])
        sums = torch.stack([part.logsumexp(-1, keepdim=True) for part in parts])
        ways = [
            ("parts_averaged", torch.full_like(tops, 1 / len(parts))),
            ("parts_averaged", (counts > 0) / (counts > 0).sum(0)),
            ("parts_merged_by_count", counts / counts.sum(0)),
            ("parts_merged_by_maxima", tops.softmax(0)),
        ]
        pairs = itertools.islice(itertools.product(_UNITS, repeat=2), 1, None)  # the first is right
        for factors in pairs if len(parts) == 2 else ():
            scaled = sums * torch.tensor(factors).view(2, *[1] * scores.dim())
            ways.append(("parts_merged_in_another_base", scaled.softmax(0)))
        for name, shares in ways:
            shared = zip(shares.nan_to_num(0.0), softmaxes, strict=True)
            yield name, call.pool(torch.cat([share * part for share, part in shared], -1))


def _rescaling(call: Call) -> Named:
    """Blocks of keys whose sums are not rescaled where a later block moves the largest score."""
    stages = call.stages
    scores = stages.masked_scores
    for block in (2, 4, 8, 16, 32, 64, 128):
        if call.lengths[1] <= block:
            continue
        parts = torch.split(scores, block, -1)
        tops = torch.stack([part.amax(-1, keepdim=True) for part in parts]).cummax(0).values
        tops = tops.masked_fill(tops == -math.inf, 0.0)
        factors = (tops - tops[-1]).exp()
        powers = [(part - top).exp() for part, top in zip(parts, tops, strict=True)]
        sums = torch.stack([power.sum(-1, keepdim=True) for power in powers])
        scaled = [power * factor for power, factor in zip(powers, factors, strict=True)]
        for shares, denominator in (
            (powers, (sums * factors).sum(0)),
            (scaled, sums.sum(0)),
            (powers, sums.sum(0)),
        ):
            weights = torch.cat(shares, -1) / denominator.masked_fill(denominator == 0, 1.0)
            yield f"block_sums_not_rescaled_{block}", call.pool(weights)
        yield f"block_sums_not_rescaled_{block}", call.pool(_divided_by_block(powers, tops))


def _divided_by_block(powers: list[Tensor], tops: Tensor) -> Tensor:
    """The weights if all blocks so far count as one key once the next one comes."""
    weights = powers[0] / powers[0].sum(-1, keepdim=True)
    for last, top, power in zip(tops, tops[1:], powers[1:], strict=False):
        weights = torch.cat([weights * (last - top).exp(), power], -1)
        weights = weights / ((last - top).exp() + power.sum(-1, keepdim=True))
    return weights.nan_to_num(0.0)


def _hidden_parts(call: Call) -> Named:
    """Rows that are lost because one part of the keys is hidden from them."""
    allowed, output = call.stages.allowed, call.stages.output
    sizes = {-(-call.lengths[1] // count) for count in (2, 3, 4)} | {2, 4, 8, 16, 32, 64, 128}
    for size in sizes - {0, 1}:
        shown = [part.any(-1, keepdim=True) for part in torch.split(allowed, size, -1)]
        lost = ~torch.stack(shown).all(0)
        for number in (0.0, math.nan):
            yield f"row_lost_with_a_hidden_part_{size}", output.masked_fill(lost, number)


def _heads(call: Call) -> Named:
    """An output that is laid as (H, L) and read as (L, H), or the other way round."""
    output = call.stages.output
    if output.dim() > 3:
        turned = output.transpose(-3, -2)
        yield "heads_read_as_queries", output.reshape(turned.shape).transpose(-3, -2)
        yield "heads_read_as_queries", turned.reshape(output.shape)


def _scores(call: Call) -> Named:
    scores, (q_len, kv_len) = call.stages.scores, call.lengths
    size = call.inputs.query.shape[-1]
    yield "scores_negative", call.score(-scores)
    yield "scores_absolute", call.score(scores.abs())
    if q_len == kv_len > 1:
        yield "scores_transposed", call.score(scores.mT)
        yield "scores_symmetrised", call.score((scores + scores.mT) / 2)
    for limit in (5.0, 10.0, 50.0):
        yield "scores_clipped", call.score(scores.clamp(-limit, limit))
    if not call.scaled or call.inputs.scale is not None:
        return
    root = math.sqrt(size)
    factors = {
        "scale_missing": root,
        "scale_applied_twice": 1 / root,
        "scale_zero": 0.0,
        "scale_of_the_queries": root / math.sqrt(q_len),
        "scale_of_the_keys": root / math.sqrt(kv_len),
        "scale_of_a_padded_size": root / math.sqrt(-(-size // 8) * 8),
        "scale_of_the_value": root / math.sqrt(call.inputs.value.shape[-1]),
    }
    for name, factor in factors.items():
        yield name, call.score(scores * factor)
    weights = call.stages.weights / root
    yield "scale_after_softmax", call.pool(weights)


def _scale(call: Call) -> Named:
    scale, default = call.inputs.scale, call.inputs.query.shape[-1] ** -0.5
    if not call.scaled or scale is None:
        return
    scales = {
        "scale_argument_ignored": default,
        "scale_argument_on_top": scale * default,
        "scale_argument_absolute": abs(scale),
        "scale_argument_divides": 1 / scale if scale else 1.0,
    }
    for name, other in scales.items():
        suffix = "_for_groups" if call.inputs.enable_gqa else ""
        yield name + suffix, textbook_output(call.inputs.replace(scale=other))


def _values(call: Call) -> Named:
    value, weights = call.stages.value, call.stages.weights
    if call.scaled and call.inputs.key.shape == value.shape:  # for groups, the values are expanded
        yield "keys_pooled", weights @ call.inputs.key.cpu().double()
    yield "values_reversed", weights @ value.flip(-2)
    yield "values_of_the_next_key", weights @ value.roll(-1, -2)
    yield "values_of_the_last_key", weights @ value.roll(1, -2)
    yield "features_reversed", weights @ value.flip(-1)
    if value.shape[-1] == value.shape[-2]:
        yield "values_transposed", weights @ value.mT
    if value.dim() > 3:
        yield "values_of_another_head", weights @ value.roll(1, -3)
    if value.dim() > 2 and value.shape[0] > 1:
        yield "values_of_another_item", weights @ value.roll(1, 0)
        yield "values_of_first_item", weights @ value[:1]


def _features(call: Call) -> Named:
    """Features beyond the last whole block, which are lost in the scores or in the output."""
    query, value = call.inputs.query, call.stages.value
    for block in (2, 4, 8, 16, 32, 64, 128):
        first, last = (
            torch.arange(t.shape[-1]) < t.shape[-1] // block * block for t in (query, value)
        )
        # next to 0, since a row of 0 is one without keys, of which NaN is no other answer
        yield f"features_lost_{block}", call.stages.output.where(last, _NEXT_TO_ZERO)
        if call.scaled and not bool(first.all()):
            kept = query * first.to(query)
            yield f"features_lost_{block}", textbook_output(call.inputs.replace(query=kept))


TOPICS: tuple[Topic, ...] = (
    _keys,
    _axes,
    _softmax,
    _merges,
    _rescaling,
    _hidden_parts,
    _heads,
    _scores,
    _scale,
    _values,
    _features,
)
