"""What the cells of the notebooks share: seeded inputs, intervals, and heat maps side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

import attnbench
from attnbench_classroom.intervals import interval
from attnbench_classroom.weight_pictures import draw

__all__ = ["curves", "fresh", "heat_maps", "interval", "normals", "over_seeds", "share", "weights"]

SEEDS = 10
_NUMBERED = 40
"""Most weights of a heat map in which they are written into all."""


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
    """Weights side by side on one scale, with their numbers where all have few."""
    tables = {name: torch.as_tensor(values).tolist() for name, values in panels.items()}
    across = min(across, len(tables))
    down, widest = -(-len(tables) // across), max(len(table[0]) for table in tables.values())
    numbered = all(len(table) * len(table[0]) <= _NUMBERED for table in tables.values())
    wide = max(3.2, 0.45 * widest) if numbered else 3.2
    figure = plt.figure(figsize=(wide * across, 2.6 * down), layout="constrained")
    draw(figure, tables, across, numbered=numbered, names=(rows, columns))


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
