"""Print how fast the kernels are, beside the textbook form and torch's fused attention.

    python kernel_table.py [--threads 2] [--rounds 15] [--memory] [--device cuda]

attnbench's own measuring takes the numbers: the two sides of a ratio take slots in turn, in blocks,
in one process and warm. A ratio is the median over its blocks, a time a low quantile of a side's
slots. Slots during which the thread was preempted count only where too few others are left; the
last column says how many they were. With one thread the clock is the thread's own.
"""

from __future__ import annotations

import argparse
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from attnbench_kernels.pairwise import pairwise_attention
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.benchmark.memory import peak_bytes
from attnbench.benchmark.timing.blocks import (
    Block,
    Slot,
    low_quantile,
    pair_value,
    take_blocks,
)
from attnbench.benchmark.timing.clocks import WALL_CLOCK
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.timing.slots import Timer, settled

SIZES = [(4, 256, 256, 128, 64), (2, 1024, 1024, 128, 128), (1, 2048, 2048, 64, 64)]
Call = Callable[[], object]


@dataclass
class Row:
    """One row: sides by name, the ratios that it is about, and the goal that each has."""

    name: str
    sides: dict[str, Call]
    goals: dict[tuple[str, str], str]
    slow: frozenset[str] = field(default_factory=frozenset)


def timers(row: Row, contract: Contract) -> dict[str, Timer]:
    """A timer for each side, all with one clock."""
    for side in row.sides.values():
        side()
    device = torch.get_default_device()
    found = {name: Timer(side, device, contract) for name, side in row.sides.items()}
    if len({timer.clock for timer in found.values()}) > 1:
        found = {
            name: Timer(side, device, contract, WALL_CLOCK) for name, side in row.sides.items()
        }
    return found


def lines(row: Row, contract: Contract, chance: random.Random) -> Iterator[str]:
    """The lines of a row, one for each ratio."""
    blocks: dict[tuple[str, str], list[Block]] = {}
    slots: dict[str, list[Slot]] = {name: [] for name in row.sides}
    with settled(torch.get_default_device()):
        timed = timers(row, contract)
        for above, below in row.goals:
            fewer = row.slow & {above, below}
            count = max(2, contract.blocks // 5) if fewer else contract.blocks
            pace = {"slot_s": contract.slot_s, "cap_s": math.inf}
            taken = list(take_blocks(timed[below], timed[above], count, chance, **pace))
            blocks[above, below] = taken
            for side, name in (("A", below), ("B", above)):
                slots[name] += [slot for block in taken for slot in block.side(side)]
    times = ", ".join(f"{name} {low_quantile(slots[name]) * 1e3:.2f}" for name in row.sides)
    for (above, below), goal in row.goals.items():
        taken = blocks[above, below]
        ratio = f"{above}/{below} {math.exp(pair_value(taken)):.2f}"
        disturbed = sum(block.disturbed for block in taken) / (4 * len(taken))
        yield f"| {row.name} | {times} | {ratio} | {goal} | {disturbed:.0%} |"


def textbook(a: Tensor, b: Tensor, w: Tensor, value: Tensor) -> Tensor:
    """Additive attention of projected queries and keys, as one writes it down."""
    scores = (a.unsqueeze(-2) + b.unsqueeze(-3)).tanh() @ w
    return scores.softmax(-1) @ value


def backward(attend: Callable[..., Tensor], *leaves: Tensor) -> Call:
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
        limit = "" if items == 4 else "<= 1.6"
        name = f"additive {sizes}"
        over, under = ("textbook", "kernel"), ("kernel", "sdpa")
        yield Row(name, forward, {over: f">= {next(least)}", under: limit}, slow)
        yield Row(f"{name}, backward too", both, {over: ">= 50", under: "<= 2"}, slow)


def sides(scoring: str, query: Tensor, key: Tensor, value: Tensor) -> dict[str, Call]:
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
        goals = {
            "additive with projections": "",
            "gaussian": "<= 1.2",
            "bilinear": "<= 1.1",
            "vector_sum": "<= 0.1" if length == 2048 else "",
        }
        for kernel, goal in goals.items():
            compared = sides(kernel.partition(" ")[0], query, key, value)
            yield Row(f"{kernel} {name}", compared, {("kernel", "sdpa"): goal})


def peak_mib(call: Call) -> float:
    """MiB that a call needs at once, beyond what there was."""
    call()
    return peak_bytes(call, torch.get_default_device()) / 2**20


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
    parser.add_argument("--device", default="cpu", help="the goals are those of a CPU")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_default_device(options.device)
    torch.manual_seed(0)
    contract = Contract(threads=options.threads, blocks=options.rounds)
    print(
        f"torch {torch.__version__}, {options.threads} threads, {options.rounds} blocks, "
        f"{torch.cuda.get_device_name() if options.device != 'cpu' else 'CPU'}"
    )
    print("| B, L, S, h or E, Ev | times, ms | ratio | goal | disturbed |\n|---|---|---|---|---|")
    chance = random.Random(0)  # noqa: S311 -- an order, not a secret
    for row in [*additive_rows(), *other_rows()]:
        if options.only in row.name:
            with torch.set_grad_enabled("backward" in row.name):
                for line in lines(row, contract, chance):
                    print(line, flush=True)
    if options.memory:
        print_memory()


if __name__ == "__main__":
    main()
