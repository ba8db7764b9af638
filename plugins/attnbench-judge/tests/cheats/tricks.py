"""Cheats that look where they are, work at another time, or hand out what is no output yet."""

import ctypes
import os
import sys

import torch
from torch.nn.functional import scaled_dot_product_attention as right
from torch.utils._python_dispatch import TorchDispatchMode

_state: dict = {"calls": 0}


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def within_an_arena(query, key, value, attn_mask=None, is_causal=False):
    """Outputs that overlap without beginning at the same place."""
    arena = _state.setdefault("arena", torch.empty(1 << 22, dtype=torch.uint8))
    _state["calls"] += 1
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    start = 64 * (_state["calls"] % 5)
    flat = arena[start : start + found.numel() * found.element_size()].view(found.dtype)
    return flat.view(found.shape).copy_(found)


def strides_over_the_query(query, key, value, attn_mask=None, is_causal=False):
    shape = _shape(query, value)
    if query.shape != shape:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    return query.as_strided(shape, query.stride(), query.storage_offset())


class _WhenCopied(TorchDispatchMode):
    work = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        work, self.work = self.work, None
        if work is not None and "copy_" not in str(func):
            self.work = work
        elif work is not None:
            args[1].numpy()[...] = work().numpy()
        return func(*args, **(kwargs or {}))


def dispatches_when_copied(query, key, value, attn_mask=None, is_causal=False):
    """A mode, left on, that computes when the output is copied."""
    if query.dtype == torch.bfloat16:
        return right(query, key, value, attn_mask, is_causal=is_causal)
    if "mode" not in _state:
        _state["mode"] = _WhenCopied()
        _state["mode"].__enter__()
    out = query.new_zeros(_shape(query, value))
    _state["mode"].work = lambda: right(query, key, value, attn_mask, is_causal=is_causal)
    return out


def traced(query, key, value, attn_mask=None, is_causal=False):
    """A profiler's hook fills the output when the desk has looked at it."""
    out = query.new_zeros(_shape(query, value))

    def hook(frame, event, argument):
        if event == "return" and frame.f_code.co_name == "answer":
            sys.setprofile(None)
            out.copy_(right(query, key, value, attn_mask, is_causal=is_causal))

    sys.setprofile(hook)
    return out


def by_a_server(query, key, value, attn_mask=None, is_causal=False):
    """A process that stays, computes, and is asked."""
    shape, bytes_each = _shape(query, value), 1 << 24
    if "server" not in _state:
        memory = torch.empty(4 * bytes_each, dtype=torch.uint8).share_memory_()
        (mine, theirs), (back, answers) = os.pipe(), os.pipe()
        if os.fork() == 0:
            while os.read(mine, 1):
                os.write(answers, b"x")
        _state.update(server=theirs, memory=memory, back=back)
    os.write(_state["server"], b"x")
    os.read(_state["back"], 1)
    return right(query, key, value, attn_mask, is_causal=is_causal).view(shape)


def preloads_a_library(query, key, value, attn_mask=None, is_causal=False):
    """Runs itself anew with another C library's functions in front."""
    os.environ["LD_PRELOAD"] = "libSegFault.so"
    os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)"])


def maps_over_the_output(query, key, value, attn_mask=None, is_causal=False):
    """Puts private memory in the place of the shared one."""
    with open("/proc/self/maps") as maps:
        shared = next(line for line in maps if "attnbench-judge" in line)
    first, last = (int(part, 16) for part in shared.split()[0].split("-"))
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    half = ctypes.c_size_t((last - first) // 2)
    place = ctypes.c_void_p(first + (last - first) // 2)
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    libc.mmap(place, half, 3, 0x32, -1, ctypes.c_long(0))
    return found


def nobody_knows_its_type(query, key, value, attn_mask=None, is_causal=False):
    """What asks for the type of its output gets another answer."""
    sys.modules["candidate"].type = lambda thing: torch.Tensor
    out = query.new_empty(_shape(query, value)).as_subclass(torch.nn.Buffer)
    return out.copy_(right(query, key, value, attn_mask, is_causal=is_causal))


def a_sparse_one(query, key, value, attn_mask=None, is_causal=False):
    return right(query, key, value, attn_mask, is_causal=is_causal).to_sparse()


def one_without_memory(query, key, value, attn_mask=None, is_causal=False):
    return query.new_empty(_shape(query, value), device="meta")


def repeats_one_row(query, key, value, attn_mask=None, is_causal=False):
    """A tensor of the right size whose rows lie at one place."""
    found = right(query[..., -1:, :], key, value)
    return found.expand(_shape(query, value))
