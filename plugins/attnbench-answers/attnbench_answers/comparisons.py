"""``attnbench diff``: two subjects, or two uses of one, call by call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import nn

from attnbench import Subject, UsageError
from attnbench.errors import headline
from attnbench.testing import LayerSubject, resolve
from attnbench_answers.calls import calls_of, made
from attnbench_answers.difference import Difference, compare_ways
from attnbench_answers.self_comparisons import QUESTIONS, Pair
from attnbench_answers.ways import Way, run

NOT_COMPARED = "not compared"
"""The verdict of a call that one of the ways does not take."""

CONVENTION = "convention"
"""The verdict of rows without keys, of which two ways give different finite numbers."""


def difference(
    targets: Sequence[Any],
    *,
    question: str | None = None,
    values: Sequence[str] = (),
    dtype: str = "float32",
    inputs: str | None = None,
    weights: str | None = None,
) -> list[dict[str, Any]]:
    """Answer whether two ways differ by rounding; called by the command in a child process.

    Args:
        targets: addresses or specs: two subjects, or one for a question.
        question: a key of :data:`QUESTIONS`, for one subject.
        values: the two values to compare, for questions that have some.
        dtype: name of the dtype in which both run.
        inputs: a safetensors file with query, key and value, instead of drawn ones.
        weights: a safetensors file with a state dict for the module.

    Returns:
        A row for each call that was compared: fields of :class:`Difference`.

    Raises:
        UsageError: the ways do not fit each other, or the question does not fit the subject.
    """
    subjects = [subject for target in targets for subject in resolve(target)]
    if len(subjects) != (2 if question is None else 1):
        wanted = "two subjects" if question is None else f"one subject for --{question}"
        names = ", ".join(subject.name for subject in subjects) or "none"
        raise UsageError(f"diff compares {wanted}, but got {len(subjects)}: {names}.")
    for subject in subjects:
        for name in values if question == "dtype" else (dtype,):
            if name not in subject.dtypes:
                known = ", ".join(subject.dtypes)
                raise UsageError(f"{subject.name} supports {known}, not {name}.")
    wide = getattr(torch, dtype)
    if question is None:
        pairs = _of_two(subjects[0], subjects[1], wide, inputs, weights)
    else:
        if inputs is not None and isinstance(subjects[0], LayerSubject):
            raise UsageError(
                "--inputs holds query, key and value, and a layer takes hidden states."
            )
        pairs = QUESTIONS[question](subjects[0], values, wide, inputs, weights)
    rows = []
    for pair in pairs:
        row = {"first": pair.first.name, "second": pair.second.name, "call": pair.words}
        rows.append(row | _compared(pair))
    if not rows:
        raise UsageError(
            f"{' and '.join(s.name for s in subjects)} have no call in common that can be compared."
        )
    if all(row["verdict"] == NOT_COMPARED for row in rows):
        raise UsageError(f"no call can be compared: {rows[0]['reason'].rstrip('.')}.")
    return rows


def _compared(pair: Pair) -> dict[str, Any]:
    """The fields of a row; where a way raises, why nothing is compared."""
    first, second, given = pair.first, pair.second, pair.tensors
    for way in (first, second):
        try:
            run(way, given)
        except Exception as error:  # whatever it raises, it does not take this call
            reason = f"{way.name} raises {headline(error)}"
            return asdict(Difference(NOT_COMPARED, 0.0, 0.0, 0.0, 0.0, (), reason))
    found = compare_ways(first, second, given)
    if pair.by_convention and found.verdict == "bug":
        values = [run(way, given)[found.place].item() for way in (first, second)]
        if math.isfinite(values[0]) == math.isfinite(values[1]):
            values_of_both = f"{first.name} gives {values[0]:.4g}, {second.name} {values[1]:.4g}"
            text = f"what a query without keys gives is a convention, and {values_of_both}"
            found = replace(found, verdict=CONVENTION, reason=text)
    return asdict(found)


def _of_two(
    first: Subject, second: Subject, dtype: torch.dtype, file: str | None, weights: str | None
) -> Iterator[Pair]:
    if isinstance(first, LayerSubject) != isinstance(second, LayerSubject):
        raise UsageError(
            f"{first.name} and {second.name} take other inputs: one is a layer, one is not."
        )
    for call in calls_of([first, second], dtype, file):
        one = made(first, call.case, weights)
        two = made(second, second.legal(call.case), None)
        _share_weights(first, second, one, two)
        pair, empty = ((first, one), (second, two)), call.empty_rows
        rows = {"": None} if empty is None else {": its others": ~empty, ": without keys": empty}
        for words, kept in rows.items():
            ways = [Way(s.name, module, call.output(s, kept), dtype) for s, module in pair]
            description, by_convention = f"{call.words}{words}", kept is empty is not None
            yield Pair(description, ways[0], ways[1], call.tensors, by_convention)


def _share_weights(first: Subject, second: Subject, one: nn.Module, two: nn.Module) -> None:
    state, own = one.state_dict(), two.state_dict()
    for name in sorted({*state, *own}):
        sizes = [tuple(held[name].shape) if name in held else None for held in (state, own)]
        if sizes[0] != sizes[1]:
            states = (f"is {size}" if size else "is missing" for size in sizes)
            raise UsageError(
                f"{second.name} does not take the weights of {first.name}, so that their outputs "
                f"cannot be compared: {name} {' in one, and '.join(states)} in the other"
            )
    two.load_state_dict(state)
