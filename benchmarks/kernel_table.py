"""Print how fast the kernels are, beside the textbook form and torch's fused attention.

    python benchmarks/kernel_table.py [--threads 2] [--rounds 15] [--memory] [--cpu-time]

All sides of a row are timed in turns, in one process, each warm: after compilation, and after a
call that is not timed. A number is the median over the rounds. A sentinel, a matrix product of
fixed size, runs in each round: a row whose sentinel is off its idle value by more than 10 % is
void, for something else was using the machine.
With one thread, ``--cpu-time`` counts the thread's own time, which suffers less from others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from attnbench_plugins.kernels._pairwise import pairwise_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench

SIZES = [(4, 256, 256, 128, 64), (2, 1024, 1024, 128, 128), (1, 2048, 2048, 64, 64)]
SENTINEL_OFF = 0.10
clock = time.perf_counter


@dataclass
class Row:
    """One row: sides by name, the ratio that it is about, and the goal that ratio has."""

    name: str
    sides: dict[str, Callable[[], object]]
    ratio: tuple[str, str]
    goal: str
    slow: frozenset[str] = field(default_factory=frozenset)


def sentinel() -> float:
    """Seconds of a matrix product of fixed size: the median of five."""
    times = []
    left = torch.ones(768, 768)
    for _ in range(5):
        started = clock()
        left @ left
        times.append(clock() - started)
    return statistics.median(times)


def measure(row: Row, rounds: int, idle: float) -> tuple[dict[str, float], float]:
    """Median seconds of each side, and how far the sentinel was off its idle value."""
    for side in row.sides.values():
        side()
    times: dict[str, list[float]] = {name: [] for name in row.sides}
    sentinels = []
    for count in range(rounds):
        sentinels.append(sentinel())
        for name, side in row.sides.items():
            if name in row.slow and count >= max(3, rounds // 5):
                continue
            if name not in row.slow:
                side()
            started = clock()
            side()
            times[name].append(clock() - started)
    off = statistics.median(sentinels) / idle - 1
    return {name: statistics.median(taken) for name, taken in times.items()}, off


def textbook(a: Tensor, b: Tensor, w: Tensor, value: Tensor) -> Tensor:
    """Additive attention of projected queries and keys, as one writes it down."""
    scores = (a.unsqueeze(-2) + b.unsqueeze(-3)).tanh() @ w
    return scores.softmax(-1) @ value


def backward(attend: Callable[..., Tensor], *leaves: Tensor) -> Callable[[], object]:
    """Forward and backward of all leaves."""
    leaves = tuple(t.detach().requires_grad_() for t in leaves)
    upstream = torch.randn_like(attend(*leaves))
    return lambda: torch.autograd.grad(attend(*leaves), leaves, upstream)


def additive_rows() -> Iterator[Row]:
    """The additive kernel on projected queries and keys, as the dot product takes its own."""
    least = iter((80, 90, 100))
    for items, q_len, kv_len, units, features in SIZES:
        sizes = f"{items}, {q_len}, {kv_len}, {units}, {features}"
        a, b = torch.randn(items, q_len, units), torch.randn(items, kv_len, units)
        w = torch.randn(units) / (0.3943 * units) ** 0.5
        value = torch.randn(items, kv_len, features)

        def kernel(*args: Tensor) -> Tensor:
            return pairwise_attention(*args, None, False)

        def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return scaled_dot_product_attention(*(t.unsqueeze(1) for t in (q, k, v)))

        args = a * 0.5**0.5, b * 0.5**0.5, w, value
        forward = {
            "textbook": lambda args=args: textbook(*args),
            "kernel": lambda args=args: kernel(*args),
            "sdpa": lambda args=(a, b, value): fused(*args),
        }
        both = {
            "textbook": backward(textbook, *args),
            "kernel": backward(kernel, *args),
            "sdpa": backward(fused, a, b, value),
        }
        slow = frozenset({"textbook"})
        limit = "" if items == 4 else "<= 1.4"
        name = f"additive {sizes}"
        yield Row(name, forward, ("textbook", "kernel"), f">= {next(least)}", slow)
        yield Row(name, forward, ("kernel", "sdpa"), limit, slow)
        yield Row(f"{name}, backward too", both, ("textbook", "kernel"), ">= 50", slow)
        yield Row(f"{name}, backward too", both, ("kernel", "sdpa"), "<= 2", slow)


def sides(
    scoring: str, query: Tensor, key: Tensor, value: Tensor
) -> dict[str, Callable[[], object]]:
    """The kernel through ``attend``, and torch's fused attention with as many projections."""
    size = query.shape[-1]
    options = {"hidden_size": size} if scoring == "additive" else {}
    module = attnbench.get(scoring).make(size, size, **options)
    left, right = torch.randn(2, size, size)
    projected = {"additive": (True, True), "bilinear": (True, False)}.get(scoring, (False, False))

    def fused() -> Tensor:
        q, k = (
            t @ m if yes else t
            for t, m, yes in zip((query, key), (left, right), projected, strict=True)
        )
        return scaled_dot_product_attention(q, k, value)

    return {"kernel": lambda: attnbench.attend(module, query, key, value), "sdpa": fused}


def other_rows() -> Iterator[Row]:
    """The kernels that call torch's fused attention, and the one that needs no pairs."""
    for items, length, size in ((4, 512, 64), (2, 1024, 128), (1, 2048, 64)):
        query, key, value = torch.randn(3, items, 1, length, size)
        name = f"{items}, {length}, {length}, {size}"
        pair = ("kernel", "sdpa")
        qkv = (query, key, value)
        yield Row(f"additive with projections {name}", sides("additive", *qkv), pair, "")
        yield Row(f"gaussian {name}", sides("gaussian", *qkv), pair, "<= 1.2")
        yield Row(f"bilinear {name}", sides("bilinear", *qkv), pair, "<= 1.1")
        goal = "<= 0.1" if length == 2048 else ""
        yield Row(f"vector_sum {name}", sides("vector_sum", *qkv), pair, goal)


def peak_mib(call: Callable[[], object]) -> float:
    """MiB allocated at once, beyond what there was, by the profiler's memory events."""
    with torch.profiler.profile(profile_memory=True, acc_events=True) as profile:
        call()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most / 2**20


def print_memory() -> None:
    """Peaks of the additive kernel on one sequence of 8192, its output and gradients included."""
    length, units = 8192, 128
    a, b, value = torch.randn(3, 1, length, units)
    w = torch.randn(units)

    def kernel(*args: Tensor) -> Tensor:
        return pairwise_attention(*args, None, False)

    with torch.no_grad():
        forward = peak_mib(lambda: kernel(a, b, w, value))
    both = peak_mib(backward(kernel, a, b, w, value))
    print(f"peak at 1, 8192, 8192, 128, 128: forward {forward:.0f} MiB (goal < 128), ", end="")
    print(f"with backward {both:.0f} MiB (goal < 256)")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--memory", action="store_true", help="also the peaks at 8192")
    parser.add_argument("--only", default="", help="rows whose name holds this")
    parser.add_argument("--cpu-time", action="store_true", help="with 1 thread: its own time")
    options = parser.parse_args()
    if options.cpu_time:
        if options.threads != 1:
            parser.error("--cpu-time is of one thread: add --threads 1")
        global clock  # one clock for the whole table
        clock = time.thread_time
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    idle = min(sentinel() for _ in range(20))
    print(
        f"torch {torch.__version__}, {options.threads} threads, idle sentinel {idle * 1e3:.2f} ms"
    )
    print("| B, L, S, h or E, Ev | times, ms | ratio | goal | sentinel |\n|---|---|---|---|---|")
    done: dict[int, tuple[dict[str, float], float]] = {}
    for row in [*additive_rows(), *other_rows()]:
        if options.only not in row.name:
            continue
        if id(row.sides) not in done:  # two ratios of one measurement
            with torch.set_grad_enabled("backward" in row.name):
                done[id(row.sides)] = measure(row, options.rounds, idle)
        seconds, off = done[id(row.sides)]
        times = ", ".join(f"{name} {taken * 1e3:.2f}" for name, taken in seconds.items())
        above, below = row.ratio
        ratio = f"{above}/{below} {seconds[above] / seconds[below]:.2f}"
        void = " VOID" if abs(off) > SENTINEL_OFF else ""
        print(f"| {row.name} | {times} | {ratio} | {row.goal} | {off:+.0%}{void} |", flush=True)
    if options.memory:
        print_memory()


if __name__ == "__main__":
    main()
