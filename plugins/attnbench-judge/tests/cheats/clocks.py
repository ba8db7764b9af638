"""Cheats that put their work where no clock runs, or turn the clocks back."""

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_state: dict = {}


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def threaded(query, key, value, attn_mask=None, is_causal=False):
    out = query.new_empty(_shape(query, value))

    def fill():
        out.copy_(right(query, key, value, attn_mask, is_causal=is_causal))

    threading.Thread(target=fill, daemon=True).start()
    return out


class _Lazy(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def real(thing):
            return thing.work() if isinstance(thing, _Lazy) and hasattr(thing, "work") else thing

        with torch._C.DisableTorchFunctionSubclass():
            return func(*map(real, args), **(kwargs or {}))


def lazy(query, key, value, attn_mask=None, is_causal=False):
    out = query.new_empty(_shape(query, value)).as_subclass(_Lazy)
    out.work = lambda: right(query, key, value, attn_mask, is_causal=is_causal)
    return out


def patched_clocks(query, key, value, attn_mask=None, is_causal=False):
    for name in ("perf_counter", "monotonic", "time", "process_time", "thread_time"):
        setattr(time, name, lambda: 0.0)
    for name in ("perf_counter_ns", "monotonic_ns", "time_ns"):
        setattr(time, name, lambda: 0)
    time.clock_gettime = lambda clock: 0.0
    return right(query, key, value, attn_mask, is_causal=is_causal)


def watches_the_memory(query, key, value, attn_mask=None, is_causal=False):
    """A thread computes as soon as inputs appear, before a request comes."""
    place = (query.data_ptr(), query.shape, key.shape, query.dtype, is_causal)
    if _state.get("place") != place:
        _state.update(place=place, ready=None)

        def watch():
            seen = None
            while _state["place"] == place:
                mark = (query[..., 0, 0].sum().item(), value[..., 0, 0].sum().item())
                if mark != seen:
                    found = right(query, key, value, attn_mask, is_causal=is_causal)
                    _state["ready"], seen = (mark, found), mark
                time.sleep(0)

        threading.Thread(target=watch, daemon=True).start()
    mark = (query[..., 0, 0].sum().item(), value[..., 0, 0].sum().item())
    ready = _state["ready"]
    if ready is not None and ready[0] == mark:
        return ready[1].clone()
    return right(query, key, value, attn_mask, is_causal=is_causal)


def refuses_to_stop(query, key, value, attn_mask=None, is_causal=False):
    for number in range(1, signal.NSIG):
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, signal.NSIG))
    return threaded(query, key, value, attn_mask, is_causal)


def hidden_processes(query, key, value, attn_mask=None, is_causal=False):
    """Computes in a process that nobody waits for: its time is in no account of its parent."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    out = query.new_empty(_shape(query, value)).share_memory_()
    child = os.fork()
    if child == 0:
        out.copy_(right(query, key, value, attn_mask, is_causal=is_causal))
        os._exit(0)
    while os.path.exists(f"/proc/{child}"):
        time.sleep(0)
    return out.clone()


def child_without_its_first_thread(query, key, value, attn_mask=None, is_causal=False):
    """Its child looks as if it had ended: the first thread has, and another goes on."""
    if "child" not in _state:
        _state["child"] = os.fork()
        if _state["child"] == 0:
            threading.Thread(target=_never_ends).start()
            ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def _never_ends():
    while True:
        sum(range(1000))
        time.sleep(0.001)


def changes_masks(query, key, value, attn_mask=None, is_causal=False):
    """Leaves the mask with one key a row, which is less work the next time."""
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask.zero_()
        attn_mask[..., 0] = True
    return found


def deletes_its_own_time(query, key, value, attn_mask=None, is_causal=False):
    """Computes in a thread that has ended when the answer comes."""
    found = []
    thread = threading.Thread(
        target=lambda: found.append(right(query, key, value, attn_mask, is_causal=is_causal))
    )
    thread.start()
    thread.join()
    return found[0]


def sleeps(query, key, value, attn_mask=None, is_causal=False):
    """Takes time in which nothing computes."""
    time.sleep(0.01)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def slow_now_and_then(query, key, value, attn_mask=None, is_causal=False):
    """Computes for 20 ms more in every sixth call."""
    _state["calls"] = _state.get("calls", 0) + 1
    until = time.thread_time() + 0.02 * (_state["calls"] % 6 == 0)
    while time.thread_time() < until:
        pass
    return right(query, key, value, attn_mask, is_causal=is_causal)


def hides_in_a_program(query, key, value, attn_mask=None, is_causal=False):
    """Computes in a program that may be run but not read, where the kernel's account ends."""
    program = os.path.join(os.environ["TMPDIR"], "program")
    if not os.path.exists(program):
        shutil.copy(os.path.realpath(sys.executable), program)
        os.chmod(program, 0o111)
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os.execv(program, [program, "-S", "-c", "sum(range(100000))"])
        os._exit(0)
    os.waitpid(child, 0)
    return right(query, key, value, attn_mask, is_causal=is_causal)
