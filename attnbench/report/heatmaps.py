"""Weights of several scoring functions on the same query and keys, as numbers for pictures."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnbench.attention.attend import attend
from attnbench.subject.lookup import resolve


def example_weights(
    subjects: Sequence[str],
    *,
    q_len: int = 5,
    kv_len: int = 10,
    size: int = 20,
    seed: int = 0,
) -> dict[str, list[list[float]]]:
    """Weights ``(L, S)`` of each scoring function on the same standard normal query and keys.

    Returns:
        Weights by address, nested lists.
    """
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, q_len, size, generator=generator)
    key = torch.randn(1, kv_len, size, generator=generator)
    found = {}
    for address in subjects:
        try:
            (subject,) = resolve(address)
            if subject.kind != "scoring":
                continue
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                torch.manual_seed(seed)
                module = subject.make(size, size, size)
                _, weights = attend(module, query, key, key, kernel="plain", return_weights=True)
        except Exception:  # noqa: S112 -- not installed here, or broken: then its record says so
            continue
        found[address] = weights[0].tolist()
    return found
