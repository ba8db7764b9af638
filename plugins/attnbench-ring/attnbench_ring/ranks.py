"""Ranks: processes of one ``torch.distributed`` group that work for this process.

They are started at first use and kept. Each exits as soon as its connection to this process is
closed, however this process ends. They stay in its process group, so killing the group ends them.
"""

from __future__ import annotations

import atexit
import functools
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from attnbench.testing import make_scoring
from attnbench_ring import one_rank
from attnbench_ring.messages import pickled

_WITHIN_S = 2.0
"""Seconds that the other ranks get to answer after one raised; later, they wait for it in vain."""


def _store(port: int, count: int) -> Any:
    """The store in which the ranks find each other, on a port of this machine (0: a new one)."""
    master = port == 0
    store: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch names it in its docs only
    return store("127.0.0.1", port, count, is_master=master, wait_for_workers=False)


class Ranks:
    """The processes of one group.

    Args:
        count: number of ranks.
        device: type of the device on which they compute; they communicate by nccl if there is a
            GPU for each, else by gloo.
    """

    def __init__(self, count: int, device: str) -> None:
        self._store = _store(0, count)
        self.processes: list[subprocess.Popen[bytes]] = []
        self._connections: list[Any] = []
        path = os.pathsep.join(filter(None, sys.path))
        for rank in range(count):
            here, there = Pipe()
            words = (there.fileno(), rank, count, self._store.port, device)
            process = subprocess.Popen(  # noqa: S603 -- this module
                [sys.executable, "-m", __name__, *map(str, words)],
                pass_fds=[there.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
            there.close()
            self.processes.append(process)
            self._connections.append(here)

    @property
    def alive(self) -> bool:
        """Whether all ranks are running."""
        return bool(self.processes) and all(one.poll() is None for one in self.processes)

    def run(self, function: str, messages: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Send each rank a message and return the results in the order of the ranks.

        Raises:
            RuntimeError: a rank raised, or has ended.
        """
        try:
            for one, message in zip(self._connections, messages, strict=True):
                one.send_bytes(pickled((function, message)))
            answers: dict[Any, tuple[Any, str | None]] = {}
            waiting: float | None = None
            while left := [c for c in self._connections if c not in answers]:
                ready = wait(left, waiting)
                if not ready:  # these wait for the one that raised
                    self.end()
                    break
                for one in (c for c in left if c in ready):
                    answers[one] = answer = pickle.loads(one.recv_bytes())  # noqa: S301 -- its child
                    waiting = _WITHIN_S if answer[1] is not None else waiting
        except (OSError, EOFError) as error:
            self.end()
            raise RuntimeError(f"a rank has ended: {error!r}") from None
        except BaseException:
            self.end()
            raise
        for _, fault in answers.values():
            if fault is not None:
                raise RuntimeError(f"on a rank: {fault}")
        return [answers[one][0] for one in self._connections]

    def end(self) -> None:
        """End all ranks."""
        for one in self._connections:
            one.close()
        for process in self.processes:
            process.kill()
            process.wait()
        self.processes, self._connections = [], []


_OF_PROCESS: dict[tuple[int, int, str], Ranks] = {}


def ranks(count: int, device: str) -> Ranks:
    """The ranks of this process; starts them if they are not running."""
    key = os.getpid(), count, device
    if key not in _OF_PROCESS or not _OF_PROCESS[key].alive:
        if key in _OF_PROCESS:
            _OF_PROCESS[key].end()
        _OF_PROCESS[key] = Ranks(count, device)
        atexit.register(_OF_PROCESS[key].end)
    return _OF_PROCESS[key]


@functools.lru_cache(maxsize=8)
def _made(scoring: str, query_size: int, key_size: int) -> nn.Module:
    return make_scoring(scoring, query_size, key_size)


def _module(
    scoring: str, sizes: tuple[int, int], state: dict[str, Any], *, training: bool, device: Any
) -> nn.Module:
    module = _made(scoring, *sizes)
    state = {name: tensor.to(device) for name, tensor in state.items()}
    module.load_state_dict(state, assign=True)
    return module.train(training)


def _answer(function: str, message: tuple[Any, ...], device: torch.device) -> Any:
    made, shard, *more = message
    tensors: dict[str, Any] = {
        k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in shard.items()
    }
    module = _module(**made, device=device)
    with torch.no_grad():
        call: Any = {"forward": one_rank.forward, "backward": one_rank.backward}[function]
        found = call(module, one_rank.Shard(**tensors), *(tensor.to(device) for tensor in more))
    return [None if tensor is None else tensor.cpu() for tensor in found]


def _read(connection: Connection[Any, Any], messages: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            messages.put(connection.recv_bytes())
    except (OSError, EOFError):
        os._exit(0)  # the process that started this rank has ended


def _main(number: int, rank: int, count: int, port: int, device: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process
    connection: Connection[Any, Any] = Connection(number)
    messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(connection, messages), daemon=True).start()
    torch.set_num_threads(1)
    own = device != "cpu" and torch.accelerator.device_count() >= count
    place = torch.device(device, rank) if own else torch.device("cpu")
    if own:
        torch.accelerator.set_device_index(rank)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store = _store(port, count)
    dist.init_process_group("nccl" if own else "gloo", store=store, rank=rank, world_size=count)
    while True:
        function, message = pickle.loads(messages.get())  # noqa: S301 -- of its parent
        try:
            answer, fault = _answer(function, message, place), None
        except Exception:
            answer, fault = None, traceback.format_exc()
        connection.send_bytes(pickled((answer, fault)))


if __name__ == "__main__":
    _number, _rank, _count, _port = map(int, sys.argv[1:5])
    _main(_number, _rank, _count, _port, sys.argv[5])
