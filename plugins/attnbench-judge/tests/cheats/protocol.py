"""Cheats that turn on the messages, the shared memory, or the code on their own side."""

import contextlib
import ctypes
import gc
import json
import os
import socket
import sys
import threading
import time

import torch
from torch.nn.functional import scaled_dot_product_attention as right

_once: list = []
_buffers: dict = {}


def _shape(query, value):
    return (*query.shape[:-1], value.shape[-1])


def _frame(name):
    frame = sys._getframe()
    while frame is not None:
        if name in frame.f_locals:
            return frame.f_locals[name]
        frame = frame.f_back
    raise LookupError(name)


def forges_an_answer(query, key, value, attn_mask=None, is_causal=False):
    request, channel = _frame("request"), _frame("channel")
    told = {"id": request["id"], "shape": list(_shape(query, value)), "dtype": "float32"}
    channel.send(json.dumps(told).encode())
    return right(query, key, value, attn_mask, is_causal=is_causal)


def answers_early(query, key, value, attn_mask=None, is_causal=False):
    """The answer goes out before the work is done, in place of the desk's own."""
    request, channel = _frame("request"), _frame("channel")
    dtype = str(query.dtype).removeprefix("torch.")
    told = {"id": request["id"], "shape": list(_shape(query, value)), "dtype": dtype}
    channel.send(json.dumps(told).encode())
    desk = _frame("self")
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    place = [dtype, found.shape, found.contiguous().stride(), request["out"], found.numel(), 0]
    desk.tensor(place).copy_(found)
    while True:  # take the place of the loop
        request = json.loads(channel.recv(1 << 16))
        tensors = [desk.tensor(one) for one in request["tensors"]]
        shape = list(_shape(tensors[0], tensors[2]))
        dtype = request["tensors"][0][0]
        told = {"id": request["id"], "shape": shape, "dtype": dtype}
        channel.send(json.dumps(told).encode())
        keywords = {
            name: tensors[v["tensor"]] if isinstance(v, dict) else v
            for name, v in request["keywords"].items()
        }
        found = right(*tensors[:3], **keywords)
        place = [dtype, shape, found.contiguous().stride(), request["out"], found.numel(), 0]
        desk.tensor(place).copy_(found)


def answers_all_in_advance(query, key, value, attn_mask=None, is_causal=False):
    channel = _frame("channel")
    for _ in range(8):
        channel.send(json.dumps({"id": "0" * 16, "shape": [1], "dtype": "float32"}).encode())
    return right(query, key, value, attn_mask, is_causal=is_causal)


def claims_a_huge_shape(query, key, value, attn_mask=None, is_causal=False):
    request, channel = _frame("request"), _frame("channel")
    told = {"id": request["id"], "shape": [2**31, 2**31], "dtype": "float64"}
    channel.send(json.dumps(told).encode())
    time.sleep(5)


def sends_rubbish(query, key, value, attn_mask=None, is_causal=False):
    _frame("channel").send(b"\xff\x00 not json")
    time.sleep(5)


def sends_depth(query, key, value, attn_mask=None, is_causal=False):
    _frame("channel").send(b"[" * 100_000)
    time.sleep(5)


def closes_descriptors(query, key, value, attn_mask=None, is_causal=False):
    os.closerange(0, 1024)
    time.sleep(5)


def closes_the_channel(query, key, value, attn_mask=None, is_causal=False):
    _frame("channel").close()
    time.sleep(60)


def patches_the_desk(query, key, value, attn_mask=None, is_causal=False):
    """Its own side says that all is well, and hands out one buffer that is filled later."""
    desk = type(_frame("self"))
    desk.fault = lambda self, output: {}
    out = query.new_empty(_shape(query, value))
    threading.Thread(
        target=lambda: out.copy_(right(query, key, value, attn_mask, is_causal=is_causal))
    ).start()
    return out


def patches_torch(query, key, value, attn_mask=None, is_causal=False):
    torch.equal = torch.allclose = lambda *args, **kwargs: True
    torch.Tensor.copy_ = lambda self, other, *args: self
    return query.new_zeros(_shape(query, value))


def writes_after_answering(query, key, value, attn_mask=None, is_causal=False):
    """A thread goes on writing into the place of the answer."""
    desk, request = _frame("self"), _frame("request")
    start = desk.own[0] + request["out"]
    count = query.numel() * query.element_size()

    def write():
        for _ in range(200):
            time.sleep(0.001)
            ctypes.memset(start, 0x40, count)

    threading.Thread(target=write, daemon=True).start()
    return right(query, key, value, attn_mask, is_causal=is_causal)


def cuts_the_memory(query, key, value, attn_mask=None, is_causal=False):
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "attnbench-judge" in os.readlink(f"/proc/self/fd/{name}"):
                os.ftruncate(int(name), 0)
    return query.new_zeros(_shape(query, value))


def looks_into_the_judge(query, key, value, attn_mask=None, is_causal=False):
    """Whether it could have read another process; the right answer if it could not."""
    reached = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in (os.getpid(), os.getppid() or -1):
            reached.append(name)
    with contextlib.suppress(OSError):
        os.kill(os.getppid(), 0)
        reached += ["parent"] * (os.getppid() != 0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.ptrace(16, os.getppid() or 1, 0, 0) == 0:
        reached.append("traced")
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", 9), timeout=1)
        reached.append("network")
    with contextlib.suppress(OSError):
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        reached.append("socket")
    for path in ("/tmp", "/var/tmp", "/etc", "/root", os.path.dirname(__file__)):
        with contextlib.suppress(OSError), open(f"{path}/attnbench-was-here", "w"):
            reached.append(path)
    with contextlib.suppress(OSError):
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        reached.append("cores")
    if reached:
        raise RuntimeError(f"reached {reached}")
    return right(query, key, value, attn_mask, is_causal=is_causal)


def one_buffer_that_nobody_finds(query, key, value, attn_mask=None, is_causal=False):
    """The comparison with earlier outputs is patched away."""
    sys.modules["candidate"]._Desk.fault = lambda desk, output: {}
    found = right(query, key, value, attn_mask, is_causal=is_causal)
    place = (found.shape, found.dtype)
    return _buffers.setdefault(place, torch.empty_like(found)).copy_(found)


def saves_at_the_desk(query, key, value, attn_mask=None, is_causal=False):
    """No collection of garbage, no looking for faults, and tensors that are made once."""
    desk = sys.modules["candidate"]._Desk
    if not hasattr(desk, "slow"):
        gc.disable()
        desk.slow, made = desk.tensor, {}

        def tensor(self, told):
            place = str(told)
            if place not in made:
                made[place] = self.slow(told)
            return made[place]

        desk.tensor, desk.fault = tensor, lambda self, output: {}
    return right(query, key, value, attn_mask, is_causal=is_causal)


def shuts_its_half(query, key, value, attn_mask=None, is_causal=False):
    """Reads no more requests from the tenth call on, and keeps the channel open."""
    _once.append(None)
    if len(_once) == 10:
        request, channel, desk = _frame("request"), _frame("channel"), _frame("desk")
        channel.shutdown(socket.SHUT_RD)
        channel.send(json.dumps({**desk.answer(request), "id": request["id"]}).encode())
        while True:
            time.sleep(1)
    return right(query, key, value, attn_mask, is_causal=is_causal)


def peeks_at_requests(query, key, value, attn_mask=None, is_causal=False):
    """Answers requests without ever taking one out of the channel."""
    if not _once:
        _once.append(None)
        request, channel, desk = _frame("request"), _frame("channel"), _frame("desk")
        channel.setsockopt(socket.SOL_SOCKET, 42, 0)  # SO_PEEK_OFF: each peek shows the next one
        while True:
            channel.send(json.dumps({**desk.answer(request), "id": request["id"]}).encode())
            request = json.loads(channel.recv(1 << 16, socket.MSG_PEEK))
    return right(query, key, value, attn_mask, is_causal=is_causal)
