"""Print what a GPU's units allow the Triton kernel's forward pass, and what its machine code needs.

    python benchmarks/gpu_limits.py [--length 4096] [--units 128] [--features 128]

The kernel is compiled for compute capability 9.0, which needs Triton and no GPU. One pass of its
loop over hidden units is counted in the machine code: all instructions, of which a multiprocessor
starts 128 lanes a cycle, and the special functions, sixteen lanes a cycle. Beside them stands what
the arithmetic alone would take, written down in OPERATIONS, and the time to read and write each
tensor once. Clock, multiprocessors and bandwidth are those of the H200's data sheet; a prediction
is a count of what the busiest unit has to do, and no measurement.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

MULTIPROCESSORS, HERTZ, BYTES_S = 132, 1.98e9, 4.8e12
LANES, SPECIAL_LANES = 128, 16
OPERATIONS = 22
"""Of four terms on the multiply-add lanes; and one special function, the shared reciprocal."""
POINTERS = (
    "a", "b", "w", "value", "mask", "over", "middle", "scale", "a_ends", "b_ends", "a_powers",
    "b_powers", "output", "logs",
)  # fmt: skip


def machine_code(units: int) -> tuple[list[str], dict[str, int]]:
    """The forward kernel's instructions for 9.0, and where labels point."""
    import triton
    from attnbench_plugins.kernels._triton import arguments, forward
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants: dict[str, Any] = {
        "units": units, "padded": triton.next_power_of_2(units), "width": 128, "squares": False,
        "kind": 0, "causal": False,
    }  # fmt: skip
    types = dict.fromkeys(POINTERS, "*fp32") | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, "i32") for name in forward._forward.arg_names}
    aligned = {(n,): [["tt.divisibility", 16]] for n in range(len(POINTERS))}  # as torch's are
    made = triton.compile(
        ASTSource(forward._forward, signature, constexprs=constants, attrs=aligned),
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


def innermost_loops(code: list[str], labels: dict[str, int]) -> list[list[str]]:
    """The instructions of each loop that has no other within."""
    ends = [
        (labels[to[1]], place)
        for place, instruction in enumerate(code)
        if (to := re.match(r"BRA.*?(\.L_x_\d+)", instruction)) and labels[to[1]] < place
    ]
    return [
        code[start : end + 1]
        for start, end in ends
        if not any(start <= other and last < end for other, last in ends)
    ]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, size in (("length", 4096), ("units", 128), ("features", 128)):
        parser.add_argument(f"--{name}", type=int, default=size)
    options = parser.parse_args()
    from attnbench_plugins.kernels._triton import arguments

    loop = max(innermost_loops(*machine_code(options.units)), key=len)  # the other takes tanh
    kinds = Counter(instruction.split()[0] for instruction in loop)
    special = {kind: count for kind, count in kinds.items() if kind.startswith("MUFU")}
    threads = 32 * arguments.OPTIONS["num_warps"]
    terms = 4 * arguments._ROWS * arguments._SLOTS // threads
    print(f"a thread's pass of the loop: {terms} terms, {len(loop)} instructions, ", end="")
    print(f"of which special functions {special}\n")
    lengths = options.length**2
    cycles = MULTIPROCESSORS * HERTZ / 1e3  # of all multiprocessors in a millisecond
    product = lengths * options.features / (LANES * cycles)
    every = lengths * options.units
    moved = 4 * 2 * options.length * (options.units + options.features)
    print("| limit on an H200, ms | by the arithmetic | by the machine code |\n|---|---|---|")
    for name, least, needed in (
        (
            "multiply-add lanes, with the product with the values",
            every * OPERATIONS / 4 / (LANES * cycles) + product,
            every * len(loop) / terms / (LANES * cycles) + product,
        ),
        (
            "special functions",
            every / 4 / (SPECIAL_LANES * cycles),
            every * sum(special.values()) / terms / (SPECIAL_LANES * cycles),
        ),
        ("memory, each tensor once", *[moved / BYTES_S * 1e3] * 2),
    ):
        print(f"| {name} | {least:.3f} | {needed:.3f} |")


if __name__ == "__main__":
    main()
