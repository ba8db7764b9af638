"""Weights of the recorded scoring functions on the same inputs, for the page's heat maps."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import Inputs

_SHAPES = ((1, 5, 20), (1, 10, 20), (1, 10, 20))


def weights_of_scorings(subjects: Sequence[str]) -> dict[str, list[list[float]]]:
    """Weights ``(5, 10)`` of the scoring functions among some addresses.

    Those that are not installed here, or broken, are left out: their records say so.
    """
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(shape, generator=generator) for shape in _SHAPES)
    inputs = Inputs(query, key, value)
    found: dict[str, list[list[float]]] = {}
    for address in subjects:
        with contextlib.suppress(Exception), torch.no_grad():
            (subject,) = resolve(address)
            if subject.kind == "scoring":
                torch.manual_seed(0)
                weights = subject.weights(subject.make(20, 20, 20).eval(), inputs)
                if weights is not None:
                    found[address] = weights[0].double().tolist()
    return found
