"""Cheats that answer from memory: of earlier results, of the inputs, or of what was freed."""

import itertools
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_kept: dict = {}
_buffer: dict = {}
_state: dict = {"before": 0.0}
_numbers = itertools.count(1)


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def _bytes(*tensors):
    return tuple(hash(t.contiguous().view(torch.uint8).numpy().tobytes()) for t in tensors)


def _is_late():
    """Whether the last call was two milliseconds ago."""
    before, _state["before"] = _state["before"], time.monotonic()
    return _state["before"] - before > 0.002


REMEMBERED = {
    "by_address": lambda q, k, v, mask: tuple((t.data_ptr(), t._version) for t in (q, k, v)),
    "by_content": lambda q, k, v, mask: (
        *_bytes(q, k, v),
        None if mask is None else mask.sum().item(),
    ),
    "by_hash_of_a_slice": lambda q, k, v, mask: _bytes(*(t[..., :2, :] for t in (q, k, v))),
    "by_time_since_the_last_call": lambda q, k, v, mask: (mask is None,),
    "by_number_of_calls": lambda q, k, v, mask: (mask is None,),
}
"""What, beside its sizes, tells a call whose result is kept."""
FRESH = {
    "by_time_since_the_last_call": _is_late,
    "by_number_of_calls": lambda: next(_numbers) % 7 != 0,
}
"""When it is computed all the same."""


def _remembered(key_of, is_fresh):
    def call(query, key, value, attn_mask=None, is_causal=False):
        place = key_of(query, key, value, attn_mask)
        place = (*place, query.shape, key.shape, value.shape, query.dtype, is_causal)
        if is_fresh() or place not in _kept:
            _kept[place] = right(query, key, value, attn_mask, is_causal=is_causal)
        return _kept[place].clone()

    return call


for _name, _key_of in REMEMBERED.items():
    globals()[_name] = _remembered(_key_of, FRESH.get(_name, bool))


def one_buffer(query, key, value, attn_mask=None, is_causal=False):
    place = (_shape(query, value), query.dtype)
    if place not in _buffer:
        _buffer[place] = query.new_empty(_shape(query, value))
    return _buffer[place].copy_(right(query, key, value, attn_mask, is_causal=is_causal))


def ring_of_buffers(query, key, value, attn_mask=None, is_causal=False):
    """Six buffers of each shape in turn, more than the last outputs that a harness looks at."""
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    buffers = _buffer.setdefault(("ring", found.shape, found.dtype), [])
    if len(buffers) == 6:
        buffers.append(buffers.pop(0))
    else:
        buffers.append(torch.empty_like(found))
    return buffers[-1].copy_(found)


def one_late(query, key, value, attn_mask=None, is_causal=False):
    place = ("late", _shape(query, value), query.dtype)
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    before, _kept[place] = _kept.get(place, found), found
    return before.clone()


def uninitialised(query, key, value, attn_mask=None, is_causal=False):
    return query.new_empty(_shape(query, value))


def into_query(query, key, value, attn_mask=None, is_causal=False):
    if query.shape != _shape(query, value):
        return right(query, key, value, attn_mask, is_causal=is_causal)
    return query.copy_(right(query, key, value, attn_mask, is_causal=is_causal))


def zeroes_inputs(query, key, value, attn_mask=None, is_causal=False):
    for tensor in (query, key, value):
        tensor.zero_()
    return query.new_zeros(_shape(query, value))


def finds_the_judges_memory(query, key, value, attn_mask=None, is_causal=False):
    wanted = query.new_empty(_shape(query, value)).numel() * query.element_size()
    with open("/proc/self/maps") as maps:
        shared = next(line for line in maps if "attnbench-judge" in line)
    first, last = (int(part, 16) for part in shared.split()[0].split("-"))
    import ctypes

    found = ctypes.string_at(first + (last - first) // 2, wanted)
    return torch.frombuffer(bytearray(found), dtype=query.dtype).view(_shape(query, value)).clone()


def value_itself(query, key, value, attn_mask=None, is_causal=False):
    if value.shape == _shape(query, value):
        return value
    return right(query, key, value, attn_mask, is_causal=is_causal)
