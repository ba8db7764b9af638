"""Time and memory of local attention as the sequence grows: with its length, not with its square.

Run ``python examples/local_scaling.py``: each local mechanism beside ``soft`` with the same score,
forward and backward, L = S, one item, 32 features. It prints a table and writes the picture.
``soft`` runs by a fused kernel, which takes memory with the length too, and time with its square.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path

import torch

import attnbench
from attnbench.benchmark.measuring.memory import peak_bytes

SUBJECTS = ("soft", "local_monotonic", "local_predictive", "key_value")
LENGTHS = (256, 512, 1024, 2048, 4096)


def measure(name: str, length: int, *, size: int = 32, repeats: int = 11) -> tuple[float, int]:
    """Seconds of the processor, the least of some repeats, and peak bytes of forward and backward.

    The processor's own seconds, since those on the clock count what else runs.
    """
    torch.manual_seed(0)
    module = attnbench.get(name).make(size, size, size, scoring="bilinear")
    query, key, value = (torch.randn(1, length, size, requires_grad=True) for _ in range(3))

    def run() -> None:
        module(query, key, value).sum().backward()

    run()
    times = []
    for _ in range(repeats):
        begun = time.process_time()
        run()
        times.append(time.process_time() - begun)
    return min(times), peak_bytes(run, torch.device("cpu"))


def growth(lengths: tuple[int, ...], values: list[float]) -> float:
    """The exponent p of values ~ length^p, between the last two lengths' factor of four."""
    return math.log(values[-1] / values[-3]) / math.log(lengths[-1] / lengths[-3])


def main() -> None:
    """Print exponents, and draw both curves."""
    import matplotlib.pyplot as plt

    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pictures"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    for name in SUBJECTS:
        measured = [measure(name, length) for length in LENGTHS]
        times, peaks = ([float(x) for x in column] for column in zip(*measured, strict=True))
        print(
            f"{name:17} time ~ L^{growth(LENGTHS, times):.2f}, "
            f"memory ~ L^{growth(LENGTHS, peaks):.2f}; at L = {LENGTHS[-1]} "
            f"{times[-1] * 1e3:.1f} ms, {peaks[-1] / 2**20:.1f} MiB"
        )
        axes[0].plot(LENGTHS, [1e3 * x for x in times], "o-", label=name)
        axes[1].plot(LENGTHS, [x / 2**20 for x in peaks], "o-", label=name)
    for axis, label in zip(axes, ("time (ms)", "peak memory (MiB)"), strict=True):
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set(xlabel="L = S", ylabel=f"{label}, forward and backward")
    axes[0].legend()
    figure.savefig(out / "local_scaling.png", dpi=110)
    print(out / "local_scaling.png")


if __name__ == "__main__":
    main()
