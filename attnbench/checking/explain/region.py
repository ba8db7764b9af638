"""Which elements of a comparison are wrong, and how: the contrast between elements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench.errors import InvariantViolation

_AXES = {"weights": ("query", "key"), "scores": ("query", "key"), "output": ("query", "feature")}
"""What the last two axes of a quantity are, by its first word."""

_MOST_LISTED = 4
_ALIKE = 1e-3
"""Numbers that differ by a smaller share are called one."""


def region_of(violation: InvariantViolation) -> str:
    """Which elements are wrong, in words: ``12 of 96: head 1, queries 2 to 3, all by 0.354``.

    Returns:
        ``""`` where nothing was compared element by element, or the only element is wrong.
    """
    compared = violation.compared or {}
    wrong = _wrong_elements(compared, violation.allowed or 0.0)
    if wrong is None or wrong.numel() < 2 or not bool(wrong.any()):
        return ""
    count = int(wrong.sum())
    if count == wrong.numel():
        head = f"all {count} elements"
    else:
        places = _places(wrong, violation.quantity)
        head = f"{count} of {wrong.numel()} elements" + (f": {places}" if places else "")
    return f"{head}{_how(compared, wrong)}"


def _wrong_elements(compared: Mapping[str, Any], allowed: float) -> Tensor | None:
    if "condition" in compared:
        condition: Tensor = compared["condition"]
        return ~condition.detach().cpu()
    if "got" not in compared:
        return None
    got, expected = _values(compared)
    return ~((got - expected).abs() <= allowed) & (got != expected)


def _values(compared: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
    got, expected = compared["got"], compared["expected"]
    return got.detach().cpu().double(), expected.detach().cpu().double()


def _places(wrong: Tensor, quantity: str) -> str:
    """The places along each axis, but for axes all of whose places are wrong."""
    parts = []
    for axis, name in enumerate(_names(wrong.dim(), quantity)):
        others = [other for other in range(wrong.dim()) if other != axis]
        along = wrong.amax(others) if others else wrong
        places = along.nonzero().flatten().tolist()
        if len(places) < wrong.shape[axis]:
            parts.append(_listed(name, places))
    return ", ".join(parts)


def _names(count: int, quantity: str) -> list[str]:
    last = next((axes for word, axes in _AXES.items() if word in quantity), ("row", "column"))
    lead = {3: ["item"], 4: ["item", "head"]}.get(count, [f"axis {n}" for n in range(count - 2)])
    return [*lead, *last] if count > 1 else [last[1]] * count


def _listed(name: str, places: list[int]) -> str:
    first, last = places[0], places[-1]
    plural = {"query": "queries"}.get(name, f"{name}s")
    if first == last:
        return f"{name} {first}"
    if places == list(range(first, last + 1)):
        return f"{plural} {first} to {last}"
    if len(places) > _MOST_LISTED:
        return f"{len(places)} {plural}"
    return f"{plural} {', '.join(map(str, places[:-1]))} and {last}"


def _how(compared: Mapping[str, Any], wrong: Tensor) -> str:
    """By how much they are wrong: all by one number, all by one factor, or from one to another."""
    if "got" not in compared:
        return ""
    got, expected = (values[wrong] for values in _values(compared))
    if bool(got.isnan().all()):
        return ", all NaN"
    gap, ratio = got - expected, got / expected
    if not bool(gap.isfinite().all()):
        return ""
    if len(gap) > 1 and bool(ratio.isfinite().all()) and _is_one(ratio):
        return f", all {ratio.mean():.3g} times what they should be"
    if _is_one(gap):
        return f", {'all ' * (len(gap) > 1)}by {gap.mean():.3g}"
    return f", by up to {gap.abs().max():.3g}"


def _is_one(numbers: Tensor) -> bool:
    """Whether numbers are alike, up to a small share of them."""
    return bool(torch.all((numbers - numbers.mean()).abs() <= _ALIKE * numbers.mean().abs()))
