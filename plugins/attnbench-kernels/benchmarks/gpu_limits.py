"""Print what a GPU's units allow the Triton kernels, and what their machine code needs.

    python gpu_limits.py [--length 4096] [--units 128] [--features 128] [--measure]

The kernels are compiled for compute capability 9.0, which needs Triton and no GPU. Counted are the
instructions that a thread needs for a tile: of the loops over hidden units and rows alone, with the
products with the values as if they took one multiply-add a number; and of the whole tile. A
multiprocessor starts 128 lanes a cycle, and special functions on sixteen lanes a cycle. Beside
them stand what the arithmetic of those loops would take, written down in KERNELS, what four
multiply-adds and a special function a term would take, and the time to read and write each tensor
once. Clock, multiprocessors and bandwidth are those of the H200's data sheet; a prediction is a
count of what the busiest unit has to do, and no measurement. With ``--measure`` each kernel is
timed on the GPU that is there, by torch's profiler: the mean of twenty calls.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

MULTIPROCESSORS, HERTZ, BYTES_S = 132, 1.98e9, 4.8e12
LANES, SPECIAL_LANES = 128, 16


class Kernel(NamedTuple):
    """What a kernel does for a tile."""

    title: str
    loops: tuple[int, ...]
    """Operations for four terms of each of its loops, beside the reciprocal that they share."""
    products: int
    """Products of a tile with the values, or with the gradient of the output."""


SCORES = 4 + 2 + 3 + 2 + 2  # parts, sums of two, their products, what lies above, and the sum
SLOPES = 4 + 3 + 2 + 4 + 4 * 2  # parts, their products, inverses of two and of each, r - r², sums
KERNELS = {
    "_forward": Kernel("forward", (SCORES,), 1),
    "_backward_rows": Kernel("gradients of queries and weights", (SCORES, SLOPES + 4), 1),
    "_backward_slots": Kernel("gradients of keys and values", (SCORES, SLOPES), 2),
}


def machine_code(name: str, units: int, features: int) -> tuple[list[str], dict[str, int]]:
    """A kernel's instructions for 9.0, and where labels point."""
    import triton
    from attnbench_kernels.triton_loops import arguments, backward, forward
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(forward if name == "_forward" else backward, name)
    constants: dict[str, Any] = {
        "units": units, "padded": triton.next_power_of_2(units), "width": 128, "squares": False,
        "kind": 0, "causal": False,
    }  # fmt: skip
    if name != "_forward":
        chunk = backward.chunk_of(units)
        constants |= {"chunk": chunk, "stride": -(-units // chunk) * chunk}
        constants["width"] = backward._WIDTH
    pointers = kernel.arg_names[: kernel.arg_names.index("q_len")]
    types = dict.fromkeys(pointers, "*fp32") | dict.fromkeys(constants, "constexpr")
    signature = {given: types.get(given, "i32") for given in kernel.arg_names}
    even = [*pointers, "features"] if features % 16 == 0 else pointers  # as Triton finds them
    aligned = {(kernel.arg_names.index(given),): [["tt.divisibility", 16]] for given in even}
    made = triton.compile(
        ASTSource(kernel, signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", 90, 32),
        options=dict(arguments.OPTIONS),
    )
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "code"
        code.write_bytes(made.asm["cubin"])
        text = subprocess.run(  # noqa: S603 -- Triton's own tool
            [str(tool), "-c", str(code)], capture_output=True, text=True, check=True
        ).stdout
    found: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            labels[label[1]] = len(found)
        elif instruction := re.match(r"\s+/\*[0-9a-f]+\*/\s+(?:@\S+\s+)?(.*?);", line):
            found.append(instruction[1])
    return found, labels


def loops_of(code: list[str], labels: dict[str, int]) -> tuple[list[str], list[list[str]]]:
    """The loop over tiles, without those within; and these, which have no other within."""
    ends = [
        (labels[to[1]], place + 1)
        for place, instruction in enumerate(code)
        if (to := re.match(r"BRA.*?(\.L_x_\d+)", instruction)) and labels[to[1]] < place
    ]
    first, last = max(ends, key=lambda loop: loop[1] - loop[0])
    inner = sorted(loop for loop in ends if first <= loop[0] and loop[1] < last)
    edges = [first, *(edge for loop in inner for edge in loop), last]
    around = [line for start, stop in list(pairwise(edges))[::2] for line in code[start:stop]]
    return around, [code[start:stop] for start, stop in inner]


def special(code: list[str]) -> int:
    """Special functions among instructions."""
    return sum(instruction.startswith("MUFU") for instruction in code)


def is_usual(loop: list[str]) -> bool:
    """Whether a loop is that of tiles whose powers need no limit: the others' or of a product."""
    text = "\n".join(loop)
    return "MUFU.RCP" in text and not re.search("MUFU.EX2|FMNMX", text)


def measured(length: int, units: int, features: int) -> dict[str, float]:
    """Milliseconds of each kernel on this machine's GPU."""
    import torch
    from attnbench_kernels.pairwise import pairwise_attention
    from torch.profiler import ProfilerActivity, profile

    sizes = {"a": units, "b": units, "value": features}
    leaves = {
        n: torch.randn(1, length, size, device="cuda", requires_grad=True)
        for n, size in sizes.items()
    }
    w = torch.randn(units, device="cuda", requires_grad=True)

    def call() -> None:
        output = pairwise_attention(*(leaves[n] for n in "ab"), w, leaves["value"], None, False)
        output.sum().backward()

    call()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        for _ in range(20):
            call()
        torch.cuda.synchronize()
    times = {event.key: event.device_time_total / event.count for event in found.key_averages()}
    return {name: times[name] / 1e3 for name in KERNELS}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, size in (("length", 4096), ("units", 128), ("features", 128)):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--measure", action="store_true", help="on the GPU of this machine")
    options = parser.parse_args()
    if options.measure:
        import torch

        print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
        sizes = options.length, options.units, options.features
        for name, time in measured(*sizes).items():
            print(f"{KERNELS[name].title}: {time:.3f} ms")
        return
    from attnbench_kernels.triton_loops import arguments, backward, tiles

    pairs = tiles.HEIGHT.value * tiles.BREADTH.value // (32 * arguments.OPTIONS["num_warps"])
    cycles = MULTIPROCESSORS * HERTZ / 1e3  # of all multiprocessors in a millisecond
    number = options.length**2 / pairs / LANES / cycles  # of one instruction for a thread's tile
    rarer = LANES / SPECIAL_LANES
    product, terms = pairs * options.features, pairs * options.units
    rows = []
    for name, kernel in KERNELS.items():
        around, inner = loops_of(*machine_code(name, options.units, options.features))
        usual = [loop for loop in inner if is_usual(loop)]
        assert len(usual) == len(kernel.loops), f"{len(usual)} loops of {name} have no limit"
        passes = [terms / 4 / special(loop) for loop in usual]
        for loop in usual:
            shared = 4 * special(loop)
            print(
                f"{kernel.title}: {len(loop)} instructions for a thread's {shared} terms, ", end=""
            )
            print(f"{32 * len(loop) / shared:.1f} for 32")
        products = kernel.products * product
        looped = sum(len(loop) * count for loop, count in zip(usual, passes, strict=True))
        apart = sum(len(loop) for loop in inner if not special(loop))  # the products' own loops
        tile = len(around) + looped + apart * options.features / backward._WIDTH
        kinds = len(kernel.loops)
        rows += [
            (f"{kernel.title}: multiply-add lanes", 4 * terms * kinds + products,
             sum(kernel.loops) / 4 * terms + products, looped + products, tile),
            (f"{kernel.title}: special functions", rarer * terms * kinds,
             rarer * terms / 4 * kinds, rarer * terms / 4 * kinds,
             rarer * (terms / 4 * kinds + special(around))),
        ]  # fmt: skip
    print("\n| on an H200, ms | four multiply-adds, one special function a term ", end="")
    print("| the arithmetic | its loops | the whole tile |\n|---|---|---|---|---|")
    for title, *counts in rows:
        print(f"| {title} |", " | ".join(f"{number * count:.3f}" for count in counts), "|")
    moved = 4 * 2 * options.length * (options.units + options.features)
    print(f"\nforward, each tensor read or written once: {moved / BYTES_S * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
