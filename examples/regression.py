"""Nadaraya-Watson regression: attention over noisy samples of 2 sin x + x^0.8.

Each point to predict is a query, each sample a key (its x) and a value (its y). Three scores:
``average`` ignores x, ``gaussian`` weighs by distance at a fixed bandwidth, and the same with the
bandwidth learned, by predicting each sample from all others. Run ``python examples/regression.py``.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

import attnbench


@dataclass(frozen=True)
class Fit:
    """One way to predict: its curve, its weights, and how far off it is.

    Args:
        name: for the picture.
        curve: ``(N,)``, predictions at the points asked for.
        weights: ``(N, samples)``.
        error: mean squared error against the curve without noise.
    """

    name: str
    curve: Tensor
    weights: Tensor
    error: float


def truth(x: Tensor) -> Tensor:
    """The function that is sampled."""
    return 2 * x.sin() + x**0.8


def samples(count: int, seed: int, noise: float = 0.5) -> tuple[Tensor, Tensor]:
    """Sorted x in [0, 5], and noisy y, ``(count,)`` each."""
    generator = torch.Generator().manual_seed(seed)
    x = (5 * torch.rand(count, generator=generator)).sort().values
    return x, truth(x) + noise * torch.randn(count, generator=generator)


def predict(
    module: nn.Module, at: Tensor, x: Tensor, y: Tensor, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Prediction ``(N,)`` at N points from the samples, and the weights ``(N, samples)``."""
    output, weights = attnbench.attend(
        module,
        at.unsqueeze(-1),
        x.unsqueeze(-1),
        y.unsqueeze(-1),
        attn_mask=mask,
        return_weights=True,
    )
    return output.squeeze(-1), weights


def gaussian(bandwidth: float) -> nn.Module:
    """The Gaussian score of scalars, at a bandwidth."""
    module = attnbench.get("gaussian").make(1, 1)
    nn.init.constant_(module.bandwidth, bandwidth)
    return module


def learn(module: nn.Module, x: Tensor, y: Tensor, steps: int = 200) -> nn.Module:
    """Fit the bandwidth: each sample is predicted from all others, which a mask picks."""
    others = ~torch.eye(len(x), dtype=torch.bool)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        guess, _ = predict(module, x, x, y, others)
        loss = (guess - y).square().mean()
        loss.backward()
        optimizer.step()
    return module


def fits(seed: int = 0, count: int = 50) -> tuple[Tensor, Tensor, Tensor, list[Fit]]:
    """Samples x and y, the points predicted at, and the three fits."""
    x, y = samples(count, seed)
    at = torch.linspace(0, 5, 101)
    modules = {
        "average": attnbench.get("average").make(1, 1),
        "fixed Gaussian": gaussian(1.0),
        "learned bandwidth": learn(gaussian(1.0), x, y),
    }
    found = []
    with torch.no_grad():
        for name, module in modules.items():
            curve, weights = predict(module, at, x, y)
            error = float((curve - truth(at)).square().mean())
            found.append(Fit(name, curve, weights, error))
    return x, y, at, found


def draw(path: Path, seed: int = 0) -> None:
    """The fits above, their weights below."""
    import matplotlib.pyplot as plt

    x, y, at, found = fits(seed)
    figure, axes = plt.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    top = float(found[-1].weights.max())
    image = None
    for column, fit in enumerate(found):
        curve, weights = axes[0, column], axes[1, column]
        curve.plot(x.numpy(), y.numpy(), "o", ms=4, color="0.6", label="samples")
        curve.plot(
            at.numpy(), truth(at).numpy(), "--", color="black", lw=1, label="2 sin x + x$^{0.8}$"
        )
        curve.plot(at.numpy(), fit.curve.numpy(), color="C3", lw=2, label="prediction")
        curve.set(title=f"{fit.name}\nmean squared error {fit.error:.3f}", xlabel="x")
        curve.set_ylim(-1.5, 5.5)
        image = weights.imshow(
            fit.weights.numpy(),
            origin="lower",
            aspect="auto",
            vmin=0,
            vmax=top,
            extent=(0, len(x), 0, 5),
        )
        weights.set(xlabel="sample, by x", ylabel="x predicted at")
    axes[0, 0].set_ylabel("y")
    axes[0, 2].legend(loc="upper right", fontsize=8)
    figure.colorbar(image, ax=axes[1, :], label="weight")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Print the errors and write the picture."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pictures"))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for fit in fits(options.seed)[-1]:
        sharpest = float(fit.weights.amax(-1).mean())
        print(f"{fit.name:18} mean squared error {fit.error:.3f}, largest weight {sharpest:.3f}")
    draw(options.out / "regression.png", options.seed)
    print(options.out / "regression.png")


if __name__ == "__main__":
    main()
