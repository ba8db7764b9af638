"""Candidates that end, hang, fill or kill things."""

import contextlib
import ctypes
import os
import signal
import sys
import time

from torch.nn.functional import scaled_dot_product_attention as right


def exits(query, key, value, attn_mask=None, is_causal=False):
    os._exit(0)


def raises_system_exit(query, key, value, attn_mask=None, is_causal=False):
    sys.exit(0)


def raises_interrupt(query, key, value, attn_mask=None, is_causal=False):
    raise KeyboardInterrupt


def hangs(query, key, value, attn_mask=None, is_causal=False):
    while True:
        time.sleep(1)


def crashes(query, key, value, attn_mask=None, is_causal=False):
    ctypes.string_at(0)


def recurses(query, key, value, attn_mask=None, is_causal=False):
    return recurses(query, key, value, attn_mask, is_causal)


def fork_bomb(query, key, value, attn_mask=None, is_causal=False):
    while True:
        with contextlib.suppress(OSError):
            os.fork()


def leaves_a_daemon(query, key, value, attn_mask=None, is_causal=False):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(3600)
        os._exit(0)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def fills_memory(query, key, value, attn_mask=None, is_causal=False):
    held = []
    while True:
        held.append(bytearray(1 << 26))


def fills_memory_by_children(query, key, value, attn_mask=None, is_causal=False):
    for _ in range(8):
        if os.fork() == 0:
            held = bytearray(os.urandom(1 << 20) * 900)
            time.sleep(3600)
            del held
    time.sleep(3600)


def fills_the_disk(query, key, value, attn_mask=None, is_causal=False):
    for number in range(10_000):
        with open(f"{os.environ['TMPDIR']}/{number}", "ab") as file:
            file.write(bytes(1 << 26))


def kills_its_group(query, key, value, attn_mask=None, is_causal=False):
    for target in (os.getppid(), -os.getpgrp(), -1):
        with contextlib.suppress(OSError):
            os.kill(target, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.killpg(os.getpgid(os.getppid()), signal.SIGKILL)
    os._exit(1)


def prints_a_gigabyte(query, key, value, attn_mask=None, is_causal=False):
    for _ in range(16):
        print("x" * (1 << 20), end="")
        print("x" * (1 << 20), end="", file=sys.stderr)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def waits_where_nothing_stops_it(query, key, value, attn_mask=None, is_causal=False):
    """vfork: the parent cannot be stopped while the child has its memory."""
    import threading

    code = ctypes.CDLL(None)

    def wait():
        if code.vfork() == 0:
            code.sleep(20)
            code._exit(0)

    threading.Thread(target=wait, daemon=True).start()
    time.sleep(0.05)
    return right(query, key, value, attn_mask, is_causal=is_causal)
