"""What the cells of the notebooks share: seeded inputs, intervals, and heat maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

import attnbench
from attnbench_classroom.intervals import interval

__all__ = ["curves", "fresh", "heat_maps", "interval", "normals", "over_seeds", "share", "weights"]

SEEDS = 10
_NUMBERED = 40
"""Most weights of a heat map that are written into it."""


def normals(seed: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    """Standard normal tensors of these shapes; not the numbers of parameters with that seed."""
    generator = torch.Generator().manual_seed(2**20 + seed)
    return [torch.randn(shape, generator=generator) for shape in shapes]


def fresh(name: str, seed: int, *sizes: int, **options: Any) -> nn.Module:
    """A new module of a registered subject, with its parameters from a seed."""
    spec: Any = attnbench.get(name)
    torch.manual_seed(seed)
    module: nn.Module = spec.make(*sizes, **options)
    return module.eval()


@torch.no_grad()
def weights(module: nn.Module, query: Tensor, key: Tensor, **options: Any) -> Tensor:
    """The weights of a scoring function under a softmax, ``(..., L, S)``."""
    return attnbench.attend(module, query, key, key, return_weights=True, **options)[1]


def over_seeds(measure: Callable[[int], float], seeds: int = SEEDS) -> tuple[float, float]:
    """The mean of a measurement over seeds, and half of its 95 % interval."""
    return interval([float(measure(seed)) for seed in range(seeds)])


def share(count: int, total: int) -> tuple[float, float]:
    """The exact 95 % interval (Clopper and Pearson) of a share that was seen as count of total."""
    from scipy.stats import binomtest

    found = binomtest(count, total).proportion_ci(0.95)
    return float(found.low), float(found.high)


def heat_maps(
    panels: Mapping[str, Tensor | Sequence[Sequence[float]]],
    *,
    rows: str = "query",
    columns: str = "key",
    across: int = 4,
) -> None:
    """Weights side by side on one scale, with their numbers where there are few."""
    across = min(across, len(panels))
    down = -(-len(panels) // across)
    tables = {name: torch.as_tensor(values).double() for name, values in panels.items()}
    numbered = [table.shape[-1] for table in tables.values() if table.numel() <= _NUMBERED]
    wide = max([3.2, *(0.45 * columns for columns in numbered)])
    figure, axes = plt.subplots(
        down, across, figsize=(wide * across, 2.6 * down), layout="constrained", squeeze=False
    )
    top = max(float(table.max()) for table in tables.values()) or 1.0
    image: Any = None
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (name, table) in zip(axes.flat, tables.items(), strict=False):
        image = axis.imshow(table.numpy(), vmin=0.0, vmax=top, cmap="viridis", aspect="auto")
        axis.set_title(name, size=9)
        for side, count in ((axis.yaxis, table.shape[0]), (axis.xaxis, table.shape[1])):
            side.set_major_locator(MaxNLocator(integer=True))
            if count == 1:
                side.set_ticks([0])
        axis.set(xlabel=columns, ylabel=rows)
        if table.numel() <= _NUMBERED:
            for i, row in enumerate(table.tolist()):
                for j, value in enumerate(row):
                    shade = "black" if value > 0.6 * top else "white"
                    axis.text(j, i, f"{value:.2f}", ha="center", va="center", color=shade, size=7)
    figure.colorbar(image, ax=axes, label="weight")


def curves(
    x: Sequence[float],
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    labels: tuple[str, str],
    logarithmic: str = "",
) -> None:
    """Means with their intervals as error bars; axes named in ``logarithmic`` get a log scale."""
    _, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    for name, values in lines.items():
        means, halves = zip(*values, strict=True)
        axis.errorbar(x, means, halves, marker="o", ms=4, capsize=3, label=name)
    axis.set(xlabel=labels[0], ylabel=labels[1])
    if "x" in logarithmic:
        axis.set_xscale("log", base=2)
    if "y" in logarithmic:
        axis.set_yscale("log")
    axis.legend()
