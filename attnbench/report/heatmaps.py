"""Weights of several scoring functions on the same query and keys, as numbers for pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from attnbench.checking.tasks import weights
from attnbench.registry.address import parse_address
from attnbench.subject.lookup import resolve


def example_weights(subjects: Sequence[str]) -> dict[str, list[list[float]]]:
    """Weights ``(5, 10)`` of the scoring functions among some addresses, on the same inputs.

    Those that are not installed here, or broken, are left out: their records say so.
    """
    found = {}
    for address in subjects:
        target = parse_address(address)
        with contextlib.suppress(Exception):
            (subject,) = resolve(target)
            if subject.kind == "scoring":
                shown = weights(target, sizes=(5, 10, 20), seed=0, inputs=None, item=None)
                found[address] = shown[subject.name]
    return found
