"""Cheats that answer from memory: of earlier results, of the inputs, or of what was freed."""

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_kept: dict = {}
_buffer: dict = {}
_freed: list = []


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def by_address(query, key, value, attn_mask=None, is_causal=False):
    place = tuple((t.data_ptr(), t._version, t.shape, t.dtype) for t in (query, key, value))
    if place not in _kept:
        _kept[place] = right(query, key, value, attn_mask, is_causal=is_causal)
    return _kept[place].clone()


def by_shape(query, key, value, attn_mask=None, is_causal=False):
    place = ("shape", query.shape, key.shape, query.dtype, is_causal)
    if place not in _kept:
        _kept[place] = right(query, key, value, attn_mask, is_causal=is_causal)
    return _kept[place].clone()


def by_fingerprint(query, key, value, attn_mask=None, is_causal=False):
    place = (query.shape, key.shape, float(query.flatten()[0]) > 0, float(value.flatten()[0]) > 0)
    if place not in _kept:
        _kept[place] = right(query, key, value, attn_mask, is_causal=is_causal)
    return _kept[place].clone()


def by_content(query, key, value, attn_mask=None, is_causal=False):
    tensors = (query, key, value)
    place = (*(hash(t.contiguous().view(torch.uint8).numpy().tobytes()) for t in tensors),)
    place = (*place, None if attn_mask is None else attn_mask.sum().item(), is_causal)
    if place not in _kept:
        _kept[place] = right(query, key, value, attn_mask, is_causal=is_causal)
    return _kept[place].clone()


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
