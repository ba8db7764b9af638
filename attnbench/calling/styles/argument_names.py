"""The usual names of what a module on hidden states takes."""

from __future__ import annotations

MASKS = {
    "padding_mask": "boolean",
    "attention_mask": "ones",
    "mask": "boolean",
    "attn_mask": "boolean",
    "key_padding_mask": "padding",
    "src_key_padding_mask": "padding",
    "self_attn_padding_mask": "padding",
    "encoder_padding_mask": "padding",
    "input_mask": "boolean",
}
"""Possible names of the argument for the padding, in the order of search, and their forms."""

FORMS = ("boolean", "ones", "padding", "additive")
"""True = real; 1 = real; True = padding; ``(B, 1, 1, S)`` with the lowest number at padding."""

CACHES = ("cache", "past_key_values", "past_key_value", "layer_past", "kv_cache", "past", "state")
"""Possible names of the argument for the cache."""

OFFSETS = ("start_pos", "offset", "past_length", "position_offset")
"""Possible names of the argument for the number of earlier tokens."""

LENGTHS = ("lengths", "valid_lens", "valid_lengths", "seq_lens")
"""Possible names of an argument for lengths, which is no mask that this style gives."""

SLOTS = ("input_pos", "cache_position")
"""Possible names of the argument for the slots ``(L,)`` of the new tokens."""
