"""Print the cycles that the ports and the divider allow the additive loops, and those they take.

    python benchmarks/roofline.py [--rounds 9]

A limit is the largest, over the processor's resources, of the cycles for which a variant's
instructions occupy one; instructions are counted in the source, per four terms of a vector. What
each occupies is from LLVM's models of processors, X86SchedSapphireRapids.td (Golden Cove: Sapphire
Rapids and Emerald Rapids) and X86ScheduleZnver4.td (Zen 4), but for VDIVPS on vectors of 512 bits,
which was measured: on Golden Cove, of whose divider LLVM's model has no time, by independent
divisions alone, 10 cycles; on Zen 4, where the divider is behind one of the two multipliers, also
by nine multiply-adds with and without a division. LLVM's model has the division occupy that
multiplier for all of its 6 cycles, which would be 3 cycles of both; measured are 2. The line above
the table prints these measurements for the processor at hand.

Measured cycles of the loops are of the difference between 192 and 64 hidden units, so that neither
softmax nor values are in it; times are of the thread, medians over rounds in which all variants
take turns, and the clock is that of a chain of multiplications of three cycles each.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from attnbench_plugins.kernels import _library, _native, _variants
from attnbench_plugins.kernels._native import Form

from attnbench.benchmark.machine.setting import processor_name

Counts = dict[str, float]

GOLDEN_COVE: dict[str, Counts] = {  # vectors of 512 bits: ports 0 and 5
    "fma": {"ports 0 and 5": 0.5},
    "mul": {"ports 0 and 5": 0.5},
    "add": {"ports 0 and 5": 0.5},
    "rcp": {"ports 0 and 5": 1.5, "port 0": 2},
    "div": {"ports 0 and 5": 1.5, "port 0": 2, "divider": 10},
}
ZEN_4: dict[str, Counts] = {  # vectors of 512 bits take each pipe twice
    "fma": {"multipliers": 1},
    "mul": {"multipliers": 1},
    "add": {"adders": 1},
    "rcp": {"multipliers": 1},
    "div": {"multipliers": 2, "divider": 6},
}
PROCESSORS = {
    ("GenuineIntel", 6, 143): ("Sapphire Rapids", GOLDEN_COVE),
    ("GenuineIntel", 6, 207): ("Emerald Rapids", GOLDEN_COVE),
    ("AuthenticAMD", 25, 17): ("Zen 4 (EPYC 9004)", ZEN_4),
    ("AuthenticAMD", 25, 97): ("Zen 4 (Ryzen 7000)", ZEN_4),
}
CLOCK = """
extern "C" void chain(long count) {
  long x = 1;
  for (long i = 0; i < count; i += 8)
    asm volatile("imul %0, %0\\n imul %0, %0\\n imul %0, %0\\n imul %0, %0\\n"
                 "imul %0, %0\\n imul %0, %0\\n imul %0, %0\\n imul %0, %0" : "+r"(x));
}
"""
CHAIN = 400_000

_FMA = "vfmadd213ps %%zmm31, %%zmm30, %%zmm{}\\n "
_DIV = "vdivps %%zmm31, %%zmm30, %%zmm20\\n "
_FMAS = [_FMA.format(register) for register in range(9)]
MIXES = {  # what a loop is made of, in an order that keeps all units busy
    "nine multiply-adds": _FMAS,
    "one division": [_DIV],
    "both": [*_FMAS[:4], _DIV, *_FMAS[4:]],
}
MIX = """
extern "C" void mix_{number}(long count) {{
  asm volatile("vpternlogd $255, %%zmm30, %%zmm30, %%zmm30\\n vpsrld $25, %%zmm30, %%zmm30\\n "
               "vpslld $23, %%zmm30, %%zmm30\\n vmovaps %%zmm30, %%zmm31\\n "  // all are 1.0
               "1: {body} dec %0\\n jnz 1b"
               : "+r"(count) : : "zmm0", "zmm1", "zmm2", "zmm3", "zmm4", "zmm5", "zmm6", "zmm7",
                 "zmm8", "zmm20", "zmm30", "zmm31", "cc");
}}
"""


def processor() -> tuple[str, dict[str, Counts] | None]:
    """Its name in words, and what its instructions occupy, if that is known."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    facts: dict[str, str] = {}
    for line in lines:
        key, _, value = line.partition(":")
        facts.setdefault(key.strip(), value.strip())
    known = (facts.get("vendor_id", ""), int(facts["cpu family"]), int(facts["model"]))
    name, model = PROCESSORS.get(known, (processor_name(), None))
    return f"{facts.get('vendor_id', '')} {name}", model


def scores_counts(share: int, newton: bool) -> Counts:
    """Instructions for `share` terms of the forward pass."""
    if share == 3:  # eight terms by three divisions
        return {"fma": 3 + 0.75, "mul": 3 * 5 / 8, "add": 3 * 7 / 8, "div": 9 / 8}
    joins = share // 2 - 1
    counts = {"fma": share + joins, "mul": share // 2 + 2 * joins, "add": share // 2 + 1.0}
    if newton:
        return {**counts, "fma": counts["fma"] + 3, "rcp": 1}
    return {**counts, "add": counts["add"] + 1, "div": 1}


def slopes_counts(newton: bool) -> Counts:
    """Instructions for four terms of the gradients."""
    counts = {"fma": 4 + 4 + 12.0, "mul": 3 + 2 + 4.0}
    return {**counts, "fma": counts["fma"] + 2, "rcp": 1} if newton else {**counts, "div": 1}


def limit(counts: Counts, model: dict[str, Counts]) -> tuple[float, str]:
    """Cycles of the busiest resource, and its name."""
    busy: Counts = {}
    for instruction, number in counts.items():
        for resource, cycles in model[instruction].items():
            busy[resource] = busy.get(resource, 0) + number * cycles
    return max((cycles, resource) for resource, cycles in busy.items())


def compiled(source: str) -> ctypes.CDLL:
    """The library of some C++."""
    with tempfile.TemporaryDirectory() as folder:
        path, made = Path(folder) / "source.cpp", Path(folder) / "made.so"
        path.write_text(source)
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        subprocess.run(  # noqa: S603 -- the user's own compiler
            [*compiler, "-O2", "-march=native", "-shared", "-fPIC", str(path), "-o", str(made)],
            check=True,
        )
        return ctypes.CDLL(str(made))


def clock() -> Callable[[], float]:
    """A function that gives the cycles a second now, of the thread."""
    chain = compiled(CLOCK).chain
    chain.argtypes = [ctypes.c_long]
    return lambda: 3 * CHAIN / seconds(lambda: chain(CHAIN))


def mixes(hertz: Callable[[], float]) -> str:
    """Cycles of multiply-adds, of a division, and of both, on vectors of 512 bits."""
    bodies = enumerate("".join(body) for body in MIXES.values())
    library = compiled("".join(MIX.format(number=number, body=body) for number, body in bodies))
    cycles: dict[str, list[float]] = {}
    for _ in range(101):
        rate = hertz()
        for number, name in enumerate(MIXES):
            run = getattr(library, f"mix_{number}")
            run.argtypes = [ctypes.c_long]
            taken = seconds(lambda run=run: run(CHAIN // 20))  # type: ignore[misc]
            cycles.setdefault(name, []).append(taken * rate / (CHAIN // 20))
    return ", ".join(f"{name} {statistics.median(taken):.1f}" for name, taken in cycles.items())


def seconds(call: Callable[[], object]) -> float:
    """Time of the thread for one call."""
    started = time.thread_time()
    call()
    return time.thread_time() - started


def calls(units: int) -> tuple[Callable[[int], object], Callable[[int], object], int]:
    """Forward pass and gradients of so many units by a variant's number, and vectors of pairs."""
    a, b, w = torch.randn(1, 256, units) / 2, torch.randn(1, 1024, units) / 2, torch.randn(1, units)
    value, g = torch.randn(1, 1024, 16), torch.randn(1, 256, 1024)
    output, grad_a = torch.empty(1, 256, 16), torch.empty_like(a)

    def scores(number: int) -> None:
        _native.attend(a, b, w, None, 1024, Form.QUOTIENT, 8.0, value, output, None, variant=number)

    def slopes(number: int) -> None:
        _native.slopes(g, a, b, w, 1024, Form.QUOTIENT, 8.0, grad_a, variant=number)

    return scores, slopes, 256 * 1024


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    torch.set_num_threads(1)
    loops = _library.library()
    if loops is None:
        raise SystemExit("the loops need a C++ compiler: set CXX to GCC or clang.")
    hertz = clock()
    few, many = calls(64), calls(192)
    rows = [("forward", 0, *item) for item in _variants.variants(loops).items()]
    rows += [("gradients", 1, *item) for item in _variants.slope_variants(loops).items()]
    cycles: dict[tuple[str, str], list[float]] = {}
    for turn in range(options.rounds + 1):
        for what, place, name, number in rows if turn % 2 else rows[::-1]:
            rate = hertz()
            more = seconds(lambda p=place, n=number: many[p](n))  # type: ignore[misc]
            less = seconds(lambda p=place, n=number: few[p](n))  # type: ignore[misc]
            fours = many[2] / (int(name.partition("-")[0]) / 32) * (192 - 64) / 4
            if turn:  # the first round warms everything up
                cycles.setdefault((what, name), []).append((more - less) * rate / fours)
    title, model = processor()
    print(f"{title}, {_native.choice()}, clock {hertz() / 1e9:.2f} GHz\n")
    if any(name.startswith("512") for name in _variants.variants(loops)):
        print(f"Cycles on vectors of 512 bits: {mixes(hertz)}.\n")
    print("| loop | variant | limit, cycles per four terms | by | measured | measured / limit |")
    print("|---|---|---|---|---|---|")
    for (what, name), found in cycles.items():
        measured = statistics.median(found)
        bits, share, how, _ = name.split("-")
        if model is None or bits != "512":
            print(f"| {what} | {name} | not known | | {measured:.1f} | |")
            continue
        newton = how == "newton"
        counts = scores_counts(int(share), newton) if what == "forward" else slopes_counts(newton)
        most, resource = limit(counts, model)
        most *= 4 / int(share)
        shown = f"{most:.1f} | {resource} | {measured:.1f} | {measured / most:.2f}"
        print(f"| {what} | {name} | {shown} |")


if __name__ == "__main__":
    main()
