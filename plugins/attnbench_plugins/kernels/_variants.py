"""The choice of a variant of the compiled loops: measured once per processor and then kept.

A variant is named by the bits of a vector, the number of terms that share a division (always four
for gradients; with ``3``, eight terms are divided as three, three and two), the method of division,
and the number of rows that share a load: ``512-8-newton-4``. All variants are exact.
``ATTNBENCH_LOOPS`` forces one.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import time
import warnings
from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

import attnbench

__all__ = [
    "TRITON",
    "VARIABLE",
    "Choice",
    "ChoiceWarning",
    "choose",
    "kept",
    "slope_variants",
    "variants",
]

VARIABLE = "ATTNBENCH_LOOPS"
TRITON = "triton"
"""The value that selects the Triton kernels; the choice of the native loops stays automatic."""
_FIELDS = ("processor", "scores", "slopes")
_ROUNDS, _MOST_S = 50, 0.8
"""Rounds over all variants, and seconds after which no further round begins."""
_GAIN = 0.03
"""What another variant must save of the first one's time to be chosen: more than the noise."""


class ChoiceWarning(UserWarning):
    """The stored choice of a variant cannot be used and is measured again."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """The chosen variants.

    Args:
        scores, slopes: numbers, in the library, of the variants for the forward pass and gradients.
        names: names of both.
        how: ``measured``, ``forced``, or ``the only one``.
    """

    scores: int
    slopes: int
    names: tuple[str, str]
    how: str

    def __str__(self) -> str:
        return f"forward {self.names[0]}, gradients {self.names[1]} ({self.how})"


def variants(loops: ctypes.CDLL) -> dict[str, int]:
    """The variants of the forward pass, numbers by name, in the library's order."""
    return {_name(*facts): number for number, facts in enumerate(_facts(loops))}


def _facts(loops: ctypes.CDLL) -> list[tuple[int, int, int, int]]:
    found: list[tuple[int, int, int, int]] = []
    facts = (ctypes.c_int64 * 4)()
    while True:
        loops.describe_variant(len(found), facts)
        bits, share, newton, rows = facts
        if not bits:
            return found
        found.append((bits, share, newton, rows))


def _name(bits: int, share: int, newton: int, rows: int) -> str:
    return f"{bits}-{share}-{'newton' if newton else 'division'}-{rows}"


def slope_variants(loops: ctypes.CDLL) -> dict[str, int]:
    """The variants of the gradients, in which four terms always share a division."""
    found: dict[str, int] = {}
    for number, (bits, _, newton, rows) in enumerate(_facts(loops)):
        found.setdefault(_name(bits, 4, newton, rows), number)
    return found


def choose(
    loops: ctypes.CDLL,
    path: Path,
    processor: str,
    runs: Callable[[], tuple[Callable[[int], Any], Callable[[int], Any]]],
) -> Choice:
    """The choice that is forced or stored; otherwise it is measured now and stored.

    Args:
        loops: the library.
        path: file of the stored choice.
        processor: identifier of this processor.
        runs: returns two functions of a variant's number, which run its forward pass and its
            gradients on some data.

    Raises:
        attnbench.UsageError: the forced variant does not exist for this processor.
    """
    scores, slopes = variants(loops), slope_variants(loops)
    forced = os.environ.get(VARIABLE)
    if forced and forced != TRITON:
        return _forced(forced, scores, _facts(loops))
    names = kept(path, processor, scores, slopes)
    if names is None:
        measured = [_fastest(run, own) for run, own in zip(runs(), (scores, slopes), strict=True)]
        names = (measured[0][0], measured[1][0])
        _keep(path, processor, names, [relative for _, relative in measured])
    return Choice(scores[names[0]], slopes[names[1]], names, "measured")


def _forced(name: str, scores: dict[str, int], facts: list[tuple[int, int, int, int]]) -> Choice:
    if name not in scores:
        raise attnbench.UsageError(
            f"{VARIABLE}={name!r}, but the loops compiled for this processor have only "
            f"{', '.join(scores)}. Set one of these, or unset {VARIABLE}."
        )
    number = scores[name]
    bits, _, newton, rows = facts[number]
    return Choice(number, number, (name, _name(bits, 4, newton, rows)), "forced")


def kept(
    path: Path, processor: str, scores: Container[str], slopes: Container[str]
) -> tuple[str, str] | None:
    """The names of the stored choice; ``None`` if there is none or (with a warning) if unusable."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        content, why = {}, f"it cannot be read ({type(error).__name__})"
    else:
        why = "it is damaged"
    names = [str(content[n]) for n in _FIELDS if isinstance(content, dict) and n in content]
    if len(names) == len(_FIELDS):
        if names[0] != processor:
            why = "it is from another processor"
        elif names[1] in scores and names[2] in slopes:
            return names[1], names[2]
        else:
            why = "it names a variant that there is not"
    warnings.warn(
        f"the kept choice of loops {path} is measured again: {why}.", ChoiceWarning, stacklevel=2
    )
    return None


def _fastest(run: Callable[[int], Any], numbers: dict[str, int]) -> tuple[str, dict[str, float]]:
    """The fastest variant, and the least times of all relative to the first one's.

    Between variants that are nearly as fast as each other it would be noise that chooses.
    """
    for number in numbers.values():
        run(number)
    least = dict.fromkeys(numbers, math.inf)
    until = time.perf_counter() + _MOST_S / 2
    for turn in range(_ROUNDS):
        for name in list(numbers) if turn % 2 else list(reversed(numbers)):
            started = time.thread_time()
            run(numbers[name])
            least[name] = min(least[name], max(time.thread_time() - started, 1e-9))
        if turn >= 2 and time.perf_counter() > until:
            break
    first = next(iter(numbers))
    relative = {name: round(taken / least[first], 4) for name, taken in least.items()}
    fastest = min(relative, key=relative.__getitem__)
    return fastest if relative[fastest] < 1 - _GAIN else first, relative


def _keep(
    path: Path, processor: str, names: tuple[str, str], measured: list[dict[str, float]]
) -> None:
    content = {
        "processor": processor,
        "scores": names[0],
        "slopes": names[1],
        "relative_times": {"scores": measured[0], "slopes": measured[1]},
    }
    made = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        made.write_text(json.dumps(content, indent=1) + "\n", "utf-8")
        made.replace(path)  # atomic: other processes see all of it or nothing
    except OSError:
        return  # it is measured again the next time
