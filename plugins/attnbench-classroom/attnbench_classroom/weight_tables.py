"""Weights as numbers: of subjects on drawn, saved or worded inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from attnbench import Inputs, UsageError
from attnbench.commands import Address
from attnbench.saved_inputs import load_inputs
from attnbench.testing import resolve

Rows = list[list[float]]


def of_subject(
    target: Address,
    *,
    sizes: tuple[int, int, int],
    seed: int,
    inputs: str | None,
    item: Sequence[int] | None,
    heads: bool = False,
    tokens: Sequence[str] | None = None,
) -> dict[str, Rows]:
    """The weights of each subject of an address for one item of drawn or saved inputs.

    Args:
        target: an address.
        sizes: L, S and E of standard normal query and keys.
        seed: seed of query and keys, and of each subject's parameters.
        inputs: path of saved inputs to use instead of drawn ones.
        item: index of one item (and head) in the leading sizes; by default the first.
        heads: give a table for each index of the last leading size.
        tokens: draw a vector for each different token, and let them be query, key and value.

    Returns:
        Rows ``L`` of ``S`` weights, by subject (and head).

    Raises:
        UsageError: a subject has no weights, or there is no such item.
    """
    given = load_inputs(inputs) if inputs is not None else _drawn(sizes, seed, tokens)
    features = [tensor.shape[-1] for tensor in (given.query, given.key, given.value)]
    found: dict[str, Rows] = {}
    for subject in resolve(target):
        torch.manual_seed(seed)
        module = subject.make(*features).to(given.query.dtype).eval()
        with torch.no_grad():
            result = subject.weights(module, given)
        if result is None:
            raise UsageError(f"{subject.name} gives no weights that could be shown.")
        found |= _tables(subject.name, result, item, heads)
    return found


def _drawn(sizes: tuple[int, int, int], seed: int, tokens: Sequence[str] | None) -> Inputs:
    q_len, kv_len, size = sizes
    generator = torch.Generator().manual_seed(seed)
    if tokens is not None:
        words = list(dict.fromkeys(tokens))
        table = torch.randn(len(words), size, generator=generator)
        states = table[[words.index(token) for token in tokens]].unsqueeze(0)
        return Inputs(states, states, states)
    query = torch.randn(1, q_len, size, generator=generator)
    key = torch.randn(1, kv_len, size, generator=generator)
    return Inputs(query, key, torch.randn(1, kv_len, size, generator=generator))


def _tables(
    name: str, weights: torch.Tensor, item: Sequence[int] | None, heads: bool
) -> dict[str, Rows]:
    """One item of weights ``(..., L, S)``; with ``heads`` a table for each last leading index."""
    lead = tuple(weights.shape[:-2])
    free = lead[:-1] if heads and len(lead) > 1 else lead
    chosen = tuple(item) if item is not None else (0,) * len(free)
    if len(chosen) != len(free) or any(i >= size for i, size in zip(chosen, free, strict=True)):
        raise UsageError(f"there is no item {list(chosen)} in inputs with leading sizes {free}.")
    found = weights[chosen].double()
    if found.dim() == 2:
        return {name: found.tolist()}
    return {f"{name}, head {head}": table for head, table in enumerate(found.tolist())}
