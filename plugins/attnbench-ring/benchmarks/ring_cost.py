"""Memory of one rank of ring attention, and what it sends.

    python ring_cost.py [SCORING]

Each line is for keys of one length S, as many queries, E = 64 and one item, float32. ``alive`` is
what a rank holds and the most that is alive beside it during a call, by the profiler; ``sent`` is
what it hands to ``torch.distributed`` for other ranks, and ``needed`` what the algorithm needs:
``(N - 1) / N · S · (Ek + Ev)`` numbers forward, and as many twice backward.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from attnbench_ring import one_rank

from attnbench.benchmark.memory import peak_bytes
from attnbench.testing import make_scoring

SIZE = 64
LENGTHS = (1024, 2048, 4096, 8192)


def measure(rank: int, ranks: int, folder: str, scoring: str) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo")
    store: Any = dist.FileStore(  # type: ignore[attr-defined]
        f"{folder}/store{ranks}", ranks
    )
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    real, sent = dist.isend, [0]

    def isend(tensor: torch.Tensor, *args: Any, **more: Any) -> Any:
        sent[0] += tensor.numel() * tensor.element_size()
        return real(tensor, *args, **more)

    dist.isend = dist.distributed_c10d.isend = isend  # type: ignore[attr-defined,unused-ignore]
    torch.manual_seed(0)
    module = make_scoring(scoring, SIZE, SIZE)
    for length in LENGTHS:
        own = one_rank.bounds(length, ranks)[rank]
        rows = [torch.randn(own[1] - own[0], SIZE) for _ in range(3)]
        shard = one_rank.Shard(*rows, None, None, False, length, length)
        found: dict[str, Any] = {}

        def forward(found: dict[str, Any] = found, shard: Any = shard) -> Any:
            with torch.no_grad():
                found["forward"] = one_rank.forward(module, shard)
            return found["forward"]

        def backward(found: dict[str, Any] = found, shard: Any = shard) -> Any:
            grad = torch.ones_like(found["forward"][0])
            return one_rank.backward(module, shard, *found["forward"], grad)

        for name, call, times in (("forward", forward, 1), ("backward", backward, 2)):
            held = sum(row.numel() * row.element_size() for row in rows)
            alive = (held + peak_bytes(call, torch.device("cpu"))) / 2**20
            sent[0] = 0
            call()
            needed = times * (length - length // ranks) * 2 * SIZE * 4
            if rank == 0:
                line = f"N={ranks} S={length:5} {name:8} alive {alive:7.3f} MiB"
                print(f"{line}  sent {sent[0]:8} B  needed {needed:8} B", flush=True)
    dist.destroy_process_group()


def main(scoring: str) -> None:
    for ranks in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            given = (ranks, str(Path(folder)), scoring)
            torch.multiprocessing.spawn(measure, given, nprocs=ranks)  # type: ignore[attr-defined]


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "scaled_dot")
