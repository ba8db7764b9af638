"""Compare the compiled loops of two builds, or two instruction sets of one, in pairs.

    python loops.py --old FOLDER [--threads 1] [--rounds 15]
    python loops.py --old-set avx2 --new-set avx512

FOLDER holds another build of the package ``attnbench_kernels``: site-packages of an environment
with its wheel, or ``plugins/attnbench-kernels`` of another checkout.

Both sides run in one process, in turns (ABBA): the additive kernel forward, and forward with
backward, at the three sizes of the kernel table, beside torch's fused attention of the same sizes.
A number is the median over rounds of a ratio within a round. With one thread the clock is the
thread's own, which suffers less from other work on the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SIZES = [(4, 256, 256, 128, 64), (2, 1024, 1024, 128, 128), (1, 2048, 2048, 64, 64)]
PACKAGE = "attnbench_kernels"
Attend = Callable[..., Tensor]


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """A variable of the environment, set to a value, or left alone where that is empty."""
    before = os.environ.get(name)
    if value:
        os.environ[name] = value
    try:
        yield
    finally:
        if value:
            os.environ.pop(name)
            if before is not None:
                os.environ[name] = before


class Renamed:
    """Gives the operators of a second copy of the kernels names of their own."""

    def __init__(self) -> None:
        self.real = torch.library.custom_op

    def __enter__(self) -> None:
        real = self.real
        setattr(  # noqa: B010 -- of a function whose type mypy holds fast
            torch.library, "custom_op", lambda name, **more: real(f"{name}_of_old", **more)
        )

    def __exit__(self, *_: object) -> None:
        torch.library.custom_op = self.real


def kernel_of(folder: Path, instructions: str) -> Attend:
    """``pairwise_attention`` of a build, apart from that of any other."""
    for name in [n for n in sys.modules if n.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.path.insert(0, str(folder))
    try:
        pairwise = importlib.import_module(f"{PACKAGE}.pairwise")
        library = importlib.import_module(f"{PACKAGE}.library")
    finally:
        sys.path.remove(str(folder))
    with environment("ATTNBENCH_LOOPS", instructions):
        pairwise.pairwise_attention(*tensors(1, 8, 8, 8, 8), None, False)
        print(f"{library.__file__}: {library.described()}")
    return pairwise.pairwise_attention


def tensors(items: int, q_len: int, kv_len: int, units: int, features: int) -> tuple[Tensor, ...]:
    """Projected queries and keys, weights of the hidden units, and values."""
    a, b = torch.randn(items, q_len, units), torch.randn(items, kv_len, units)
    w = torch.randn(units) / (0.3943 * units) ** 0.5
    return a * 0.5**0.5, b * 0.5**0.5, w, torch.randn(items, kv_len, features)


def backward(attend: Attend, *leaves: Tensor) -> Callable[[], object]:
    """Forward and backward of all leaves."""
    leaves = tuple(t.detach().requires_grad_() for t in leaves)
    upstream = torch.randn_like(attend(*leaves))

    def both() -> object:
        with torch.enable_grad():
            return torch.autograd.grad(attend(*leaves), leaves, upstream)

    return both


def timed(call: Callable[[], object], clock: Callable[[], float]) -> float:
    """Seconds of one call."""
    started = clock()
    call()
    return clock() - started


def compare(sides: Sequence[Callable[[], object]], rounds: int, clock: Callable[[], float]) -> str:
    """Ratios of new to old and of either to the third side, and the median times."""
    for side in sides:
        side()
    ratios: dict[str, list[float]] = {"new/old": [], "old/sdpa": [], "new/sdpa": []}
    taken: list[list[float]] = []
    for _ in range(rounds):
        first = [timed(side, clock) for side in sides]
        second = [timed(side, clock) for side in reversed(sides)][::-1]
        old, new, fused = ((x * y) ** 0.5 for x, y in zip(first, second, strict=True))
        ratios["new/old"].append(new / old)
        ratios["old/sdpa"].append(old / fused)
        ratios["new/sdpa"].append(new / fused)
        taken.append([old, new, fused])
    times = [statistics.median(one) * 1e3 for one in zip(*taken, strict=True)]
    shown = " | ".join(f"{statistics.median(found):.3f}" for found in ratios.values())
    return f"{shown} | {times[0]:.2f}, {times[1]:.2f}, {times[2]:.2f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = Path(__file__).parent.parent
    parser.add_argument("--old", type=Path, default=here, help="the folder of the old side")
    parser.add_argument("--new", type=Path, default=here, help="the folder of the new side")
    parser.add_argument("--old-set", default="", help="the instruction set of the old side")
    parser.add_argument("--new-set", default="", help="the instruction set of the new side")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    clock = time.thread_time if options.threads == 1 else time.perf_counter
    new = kernel_of(options.new.resolve(), options.new_set)
    with Renamed():
        old = kernel_of(options.old.resolve(), options.old_set)
    print(f"torch {torch.__version__}, {options.threads} threads")
    print("| B, L, S, h, Ev | new/old | old/sdpa | new/sdpa | old, new, sdpa, ms |")
    print("|---|---|---|---|---|")

    def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return scaled_dot_product_attention(*(t.unsqueeze(1) for t in (q, k, v)))

    def attends(attend: Attend) -> Attend:
        return lambda *args: attend(*args, None, False)

    for sizes in SIZES:
        a, b, w, value = tensors(*sizes)
        given: list[tuple[Attend, tuple[Tensor, ...]]] = [
            (attends(old), (a, b, w, value)),
            (attends(new), (a, b, w, value)),
            (fused, (a, b, value)),
        ]
        name = ", ".join(map(str, sizes))
        with torch.no_grad():
            sides = [functools.partial(attend, *leaves) for attend, leaves in given]
            print(f"| {name} | {compare(sides, options.rounds, clock)} |", flush=True)
        both = [backward(attend, *leaves) for attend, leaves in given]
        print(f"| {name}, backward too | {compare(both, options.rounds, clock)} |", flush=True)


if __name__ == "__main__":
    main()
