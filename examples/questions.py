"""Four questions that textbooks ask about scores, answered by computing.

Run ``python examples/questions.py``; it prints each answer with the numbers it rests on, and writes
the pictures.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor

import attnbench

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""E at which gradients are compared."""


def weights_of(name: str, query: Tensor, key: Tensor, seed: int = 0, **options: int) -> Tensor:
    """The weights of a freshly made score on a query and a key."""
    torch.manual_seed(seed)
    module = attnbench.get(name).make(query.shape[-1], key.shape[-1], **options)
    with torch.no_grad():
        return attnbench.attend(module, query, key, key, return_weights=True)[1]


def same_keys(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Weights ``(2, 10)`` of additive and of scaled dot on the same queries and keys."""
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, 2, 20, generator=generator)
    key = torch.randn(1, 10, 20, generator=generator)
    additive = weights_of("additive", query, key, seed, hidden_size=8)
    return additive[0], weights_of("scaled_dot", query, key, seed)[0]


def matrix_products_alone(query_size: int = 3, key_size: int = 7) -> float:
    """How far bilinear's scores are from (qW) · k, the largest difference."""
    torch.manual_seed(0)
    query, key = torch.randn(4, query_size).double(), torch.randn(6, key_size).double()
    module = attnbench.get("bilinear").make(query_size, key_size).double()
    with torch.no_grad():
        products = (query @ module.weight) @ key.T * module.scale
        return float((module(query, key) - products).abs().max())


def query_dependence(name: str) -> float:
    """How much weights differ between the queries of one call, the largest difference."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(n, 8, generator=generator) for n in (16, 10))
    weights = weights_of(name, query, key)
    return float((weights - weights[:1]).abs().max())


def gradient_of_softmax(name: str, size: int, draws: int = 64) -> float:
    """Mean norm of the softmax's Jacobian at the scores of E features over 16 keys.

    The Jacobian is diag(w) - w wᵀ: 0 where one weight is 1, so that nothing can be learned there.
    """
    generator = torch.Generator().manual_seed(size)
    query, key = (torch.randn(draws, n, size, generator=generator) for n in (1, 16))
    weights = weights_of(name, query, key).squeeze(-2)
    jacobian = torch.diag_embed(weights) - weights.unsqueeze(-1) * weights.unsqueeze(-2)
    return float(jacobian.norm(dim=(-2, -1)).mean())


def draw_weights(path: Path) -> None:
    """Additive beside scaled dot, on the same keys."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 2.8), layout="constrained")
    both = same_keys()
    top = max(float(weights.max()) for weights in both)
    image = None
    for axis, weights, title in zip(axes, both, ("additive", "scaled dot"), strict=True):
        image = axis.imshow(weights.numpy(), vmin=0, vmax=top, cmap="viridis")
        axis.set(title=title, xlabel="key", ylabel="query", xticks=range(10), yticks=range(2))
        for row, values in enumerate(weights.tolist()):
            for column, value in enumerate(values):
                color = "black" if value > 0.6 * top else "white"
                axis.text(
                    column, row, f"{value:.2f}", ha="center", va="center", color=color, size=7
                )
    figure.colorbar(image, ax=axes, label="weight")
    figure.savefig(path, dpi=110)
    plt.close(figure)


def draw_gradients(path: Path) -> None:
    """The softmax's gradient as E grows, with and without the scale."""
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6.4, 4), layout="constrained")
    for name, label, marker in (
        ("scaled_dot", "scaled dot, q·k / √E", "o-"),
        ("dot", "dot, q·k", "s-"),
    ):
        axis.plot(SIZES, [gradient_of_softmax(name, size) for size in SIZES], marker, label=label)
    axis.set_xscale("log", base=2)
    axis.set(xlabel="features E", ylabel="mean norm of the softmax's Jacobian", ylim=(0, None))
    axis.legend()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def main() -> None:
    """Print the four answers and write the two pictures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/pictures"))
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    additive, scaled_dot = same_keys()
    gap = float((additive - scaled_dot).abs().max())
    print("1. Do additive and scaled dot product give the same weights on the same keys?")
    print(f"   No: on the same 10 keys they differ by up to {gap:.2f}.")
    print("2. Can queries and keys of different sizes be scored by matrix products alone?")
    print(
        "   Yes: bilinear is qWk, a dot product of qW and k. "
        f"Sizes 3 and 7: (qW)·k differs from it by {matrix_products_alone():.0e}."
    )
    print("3. Is the vector sum a better score than the dot product?")
    for name in ("vector_sum", "scaled_dot"):
        print(f"   {name}: weights differ between queries by up to {query_dependence(name):.1e}.")
    print("   No: the query's term is the same for every key, and softmax removes it.")
    print("4. Does leaving out the scale kill the softmax's gradient as E grows?")
    for size in (1, 64, 1024):
        dot, scaled = (gradient_of_softmax(name, size) for name in ("dot", "scaled_dot"))
        print(f"   E = {size:4}: Jacobian's norm {dot:.3f} without, {scaled:.3f} with the scale.")
    print("   Yes: scores of variance E leave one weight near 1.")
    draw_weights(out / "additive_and_scaled_dot.png")
    draw_gradients(out / "scale_and_gradient.png")
    print(out / "additive_and_scaled_dot.png", out / "scale_and_gradient.png", sep="\n")


if __name__ == "__main__":
    main()
