"""Mistakes about the keys that a query sees: masks, causality, lengths, and empty rows."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench.checking.cause.textbook_call import Call, Named, Topic
from attnbench.oracle.textbook import stages_of

_LARGE_NUMBER = 1e4
"""Its negative is a stand-in for minus infinity that does not change a fully hidden row."""


def _masks(call: Call) -> Named:
    mask = call.inputs.attn_mask
    if mask is None:
        return
    yield "mask_ignored", call.mask_by(attn_mask=None)
    if mask.dtype == torch.bool:
        yield "mask_inverted", call.mask_by(attn_mask=~mask)
        yield "mask_inverted", call.mask_by(attn_mask=-_LARGE_NUMBER * mask.double())
        yield "mask_added", call.mask_by(attn_mask=mask.double())
        yield "mask_scores_zeroed", _zeroed(call, mask)
        count = mask.expand(*mask.shape[:-1], call.lengths[1]).sum(-1, keepdim=True)
        keys = torch.arange(call.lengths[1], device=mask.device)
        yield "mask_read_as_length", call.mask_by(attn_mask=keys < count)
    else:
        hidden = mask == -math.inf
        yield "bias_ignored", call.mask_by(attn_mask=~hidden)
        yield "bias_subtracted", call.mask_by(attn_mask=(-mask).masked_fill(hidden, -math.inf))
        scale = call.inputs.query.shape[-1] ** -0.5
        yield "bias_scaled", call.mask_by(attn_mask=mask * scale)
        yield "bias_of_base_two", call.mask_by(attn_mask=mask * math.log(2.0))
        for left in (mask >= 0, mask == 0, mask != 0):
            yield "bias_read_as_boolean", call.mask_by(attn_mask=left)
        for narrow in (torch.bfloat16, torch.float16):
            yield "bias_rounded", call.mask_by(attn_mask=mask.to(narrow).to(mask.dtype))
        yield "bias_clipped", call.mask_by(attn_mask=mask.clamp_min(-5.0))
        if hidden.any():
            yield "bias_hides_nothing", call.mask_by(attn_mask=mask.masked_fill(hidden, 0.0))


def _all_masks(call: Call) -> Named:
    """Mistakes about masks, lengths and causality together."""
    allowed, inputs = call.stages.allowed, call.inputs
    if bool(allowed.all()):
        return
    unmasked = call.stages.replace(allowed=torch.ones_like(allowed))
    if inputs.attn_mask is not None or inputs.valid_lens is not None:  # not causality alone
        yield "all_masks_ignored", unmasked.output
    yield "all_masks_inverted", call.allow(~allowed)
    late = unmasked.weights.to(inputs.query.dtype) * allowed
    yield "mask_after_softmax", call.pool(late.double())
    total = late.sum(-1, keepdim=True)  # of 0 where a hidden score is far above the others
    yield "hidden_scores_in_softmax", call.pool((late / (total + (total == 0))).double())


def _zeroed(call: Call, mask: Tensor) -> Tensor:
    """The output if hidden scores are 0, as after multiplying with the mask."""
    unmasked = stages_of(call.inputs.replace(attn_mask=None))
    scores = call.stages.scores * mask.cpu()
    return call.stages.replace(scores=scores, allowed=unmasked.allowed, bias=unmasked.bias).output


def _places(call: Call) -> Named:
    """Masks applied to the wrong items, heads, queries or keys."""
    allowed, (q_len, kv_len) = call.stages.allowed, call.lengths
    inputs = call.inputs
    if bool(allowed.all()) or (inputs.attn_mask is None and inputs.valid_lens is None):
        return
    kind = "lengths" if inputs.attn_mask is None else "mask"
    yield f"{kind}_laid_of_first_query", call.allow(allowed[..., :1, :])
    yield f"{kind}_laid_of_last_query", call.allow(allowed[..., -1:, :])
    for step in (-1, 1):
        yield f"{kind}_laid_one_query_off", call.allow(allowed.roll(step, -2))
        yield f"{kind}_laid_one_key_off", call.allow(allowed.roll(step, -1))
    seen_by_any = allowed.any(-2, keepdim=True)
    if not bool(seen_by_any.all()):  # or else it looks like no mask
        yield f"{kind}_laid_of_any_query", call.allow(seen_by_any)
    if q_len == kv_len:
        yield f"{kind}_laid_transposed", call.allow(allowed.mT)
        yield f"{kind}_laid_over_queries_too", call.allow(allowed & allowed.mT)
        yield f"{kind}_laid_of_keys_for_queries", call.allow(allowed[..., :1, :].mT)
    for axis in range(allowed.dim() - 2):
        yield f"{kind}_laid_of_first_item", call.allow(allowed.narrow(axis, 0, 1))
    if allowed.dim() == 3 and allowed.shape[0] == q_len:
        yield f"{kind}_laid_of_items_for_queries", call.allow(allowed.transpose(0, 1))
    if allowed.dim() == 4:
        items, heads = allowed.shape[:2]
        tiled = allowed.flatten(0, 1)[torch.arange(items * heads) % items * heads]
        yield f"{kind}_laid_tiled_over_heads", call.allow(tiled.reshape(allowed.shape))
        first = torch.arange(heads).reshape(-1, 1, 1) == 0
        yield f"{kind}_laid_of_first_head", call.allow(allowed | ~first)
        if items == heads:
            yield f"{kind}_laid_of_items_for_heads", call.allow(allowed.transpose(0, 1))


def _first_rows(call: Call) -> Named:
    """Masks of which each block of queries gets the first rows."""
    stages, q_len = call.stages, call.lengths[0]
    if call.inputs.attn_mask is None and call.inputs.valid_lens is None:
        return
    for block in (2, 4, 8, 16, 32, 64, 128):
        if block < q_len:
            rows = torch.arange(q_len) % block
            allowed, bias = (t.index_select(-2, rows) for t in (stages.allowed, stages.bias))
            output = stages.replace(allowed=allowed, bias=bias).output
            yield f"mask_laid_of_first_rows_{block}", output


def _groups(call: Call) -> Named:
    """Masks of which grouped heads of the query get the heads of others."""
    inputs, mask = call.inputs, call.inputs.attn_mask
    if not inputs.enable_gqa or mask is None or mask.dim() < 3:
        return
    count, key_heads = inputs.query.shape[-3], inputs.key.shape[-3]
    heads = torch.arange(count).reshape(key_heads, -1)
    size = heads.shape[1]
    turned = heads.mT.flatten()  # the heads of a group lie apart, and not side by side
    others = (turned, turned.argsort(), heads.flatten() // size, heads.flatten() // size * size)
    for order in others if 1 < size < count else others[2:]:
        parts = (call.stages.allowed, call.stages.bias)
        allowed, bias = (part.index_select(-3, order) for part in parts)
        output = call.stages.replace(allowed=allowed, bias=bias).output
        yield "mask_laid_over_other_heads_of_groups", output


def _blocks(call: Call) -> Named:
    """Blocks of queries and keys that are skipped where the mask hides their first slot."""
    allowed, lengths = call.stages.allowed, call.lengths
    for block in (2, 4, 8, 16, 32, 64, 128):
        if bool(allowed.all()) or max(lengths) < block // 2:
            return
        first = allowed[..., ::block, ::block]
        for axis, length in ((-2, lengths[0]), (-1, lengths[1])):
            first = first.repeat_interleave(block, axis).narrow(axis, 0, length)
        of_window = call.inputs.window_size is not None and call.inputs.attn_mask is None
        name = "window_size_read_by_block" if of_window else f"mask_read_by_block_{block}"
        yield name, call.allow(first & allowed)


def _causality(call: Call) -> Named:
    inputs, (q_len, kv_len) = call.inputs, call.lengths
    if not inputs.is_causal:
        return
    allowed = stages_of(inputs.replace(is_causal=False, causal="bottom_right")).allowed
    ones, shift = torch.ones(q_len, kv_len, dtype=torch.bool), kv_len - q_len
    has_mask = inputs.attn_mask is not None or inputs.valid_lens is not None
    yield ("causality_lost_beside_a_mask" if has_mask else "causality_ignored"), call.allow(allowed)
    diagonals = {"top_left": 0, "bottom_right": shift, "of_the_lengths_difference": -shift}
    for name, offset in diagonals.items():
        if inputs.causal != name:
            yield f"causality_{name}", call.allow(allowed & ones.tril(offset))
    diagonal = 0 if inputs.causal == "top_left" else shift
    yield "causality_strict", call.allow(allowed & ones.tril(diagonal - 1))
    yield "causality_one_ahead", call.allow(allowed & ones.tril(diagonal + 1))
    yield "causality_reversed", call.allow(allowed & ones.triu(diagonal))
    if inputs.enable_gqa and (groups := inputs.query.shape[-3] // inputs.key.shape[-3]) > 1:
        last = torch.arange(q_len)[:, None] // groups + diagonal
        yield "causality_of_packed_groups", call.allow(allowed & (torch.arange(kv_len) <= last))
    if inputs.attn_mask is not None:
        yield "mask_lost_beside_causality", call.mask_by(attn_mask=None)


def _lengths(call: Call) -> Named:
    lens, kv_len = call.inputs.valid_lens, call.lengths[1]
    if lens is None:
        return
    lengths = lens.long()
    has_mask = call.inputs.is_causal or call.inputs.attn_mask is not None
    yield (
        ("lengths_lost_beside_a_mask" if has_mask else "lengths_ignored"),
        call.mask_by(valid_lens=None),
    )
    yield "length_one_too_long", call.mask_by(valid_lens=(lengths + 1).clamp_max(kv_len))
    yield "length_one_too_short", call.mask_by(valid_lens=lengths - 1)
    yield "lengths_counted_from_the_end", call.allow(_from_the_end(call, lengths))
    if lens.dim() == 2:
        for name, row in {
            "first": lengths[:, :1],
            "last": lengths[:, -1:],
            "longest": lengths.amax(-1, keepdim=True),
        }.items():
            yield f"lengths_of_{name}_query", call.mask_by(valid_lens=row.expand_as(lengths))


def _from_the_end(call: Call, lens: Tensor) -> Tensor:
    allowed = stages_of(call.inputs.replace(valid_lens=None)).allowed
    visible = stages_of(call.inputs.replace(is_causal=False, attn_mask=None)).allowed
    return allowed & visible.flip(-1)


def _rows(call: Call) -> Named:
    empty = ~call.stages.allowed.any(-1, keepdim=True)
    if not bool(empty.any()):
        return
    value, output = call.stages.value, call.stages.output
    fills = {
        "nan": torch.full_like(output, math.nan),
        "mean": value.mean(-2, keepdim=True),
        "first_value": value[..., :1, :],
        "unmasked": stages_of(
            call.inputs.replace(attn_mask=None, valid_lens=None, is_causal=False)
        ).output
        if call.scaled
        else output,
    }
    for name, fill in fills.items():
        yield f"empty_rows_{name}", torch.where(empty, fill, output)


TOPICS: tuple[Topic, ...] = (
    _masks,
    _all_masks,
    _places,
    _first_rows,
    _groups,
    _blocks,
    _causality,
    _lengths,
    _rows,
)
