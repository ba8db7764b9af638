"""Two uses of one subject: two dtypes, in a batch and alone, with a cache, by implementation."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from attnbench import Subject, UsageError
from attnbench.errors import nearest
from attnbench.testing import LayerSubject, select_items
from attnbench_answers.calls import LENGTH, ComparedCall, calls_of, layer_call, made
from attnbench_answers.ways import Tensors, Way

_CHUNK = 5


class Pair(NamedTuple):
    """Two ways to compute a call.

    Args:
        words: what the call is called.
        first, second: the ways.
        tensors: their inputs.
        by_convention: whether a convention, and no formula, says what is right here.
    """

    words: str
    first: Way
    second: Way
    tensors: list[Tensor]
    by_convention: bool = False


def _with_first(words: str, ways: Sequence[Way], tensors: list[Tensor]) -> Iterator[Pair]:
    for other in ways[1:]:
        yield Pair(words, ways[0], other, tensors)


def _dtypes(
    subject: Subject, values: Sequence[str], _: Any, file: str | None, weights: str | None
) -> Iterator[Pair]:
    pair = [getattr(torch, value) for value in values]
    widest = min(pair, key=lambda dtype: torch.finfo(dtype).eps)
    for call in calls_of([subject], widest, file):
        module = made(subject, call.case, weights)
        ways = [
            Way(value, copy.deepcopy(module).to(dtype), call.output(subject), dtype)
            for value, dtype in zip(values, pair, strict=True)
        ]
        yield from _with_first(call.words, ways, call.tensors)


def _batch(
    subject: Subject, _: Any, dtype: torch.dtype, file: str | None, weights: str | None
) -> Iterator[Pair]:
    for call in calls_of([subject], dtype, file):
        if call.tensors[0].dim() < 3:
            continue
        module = made(subject, call.case, weights)
        ways = [
            Way("in a batch", module, _real_tokens(subject, call, alone=False), dtype),
            Way("each alone", module, _real_tokens(subject, call, alone=True), dtype),
        ]
        yield from _with_first(call.words, ways, call.tensors)


def _real_tokens(
    subject: Subject, compared: ComparedCall, *, alone: bool
) -> Callable[[nn.Module, Tensors], Tensor]:
    """Calls whose items are in a batch or alone; padding of a layer is cut off where alone."""

    def call(module: nn.Module, tensors: Tensors) -> Tensor:
        given = compared.given(tensors)
        padding = getattr(given, "padding_mask", None)
        if not alone:
            whole = subject.output(module, given)
            return whole if padding is None else whole[padding]
        if not isinstance(subject, LayerSubject):
            items = (select_items(given, (slice(i, i + 1),)) for i in range(len(tensors[0])))
            return torch.cat([subject.output(module, item) for item in items])
        outputs = []
        for item, hidden in enumerate(given.hidden):
            kept = hidden if padding is None else hidden[padding[item]]
            if len(kept):
                outputs.append(subject.call(module, kept[None])[0][0])
        return torch.stack(outputs) if padding is None else torch.cat(outputs)

    return call


_PATHS = {"prefill": None, "cached": LENGTH, "decode": 1, "chunks": _CHUNK}
"""Ways to give a sequence to a layer: tokens in a call; without a cache for ``None``."""


def _paths(
    subject: Subject, values: Sequence[str], dtype: torch.dtype, _: Any, weights: str | None
) -> Iterator[Pair]:
    for value in values:
        if value not in _PATHS:
            raise UsageError(f"--paths knows no {value!r}. {nearest(value, _PATHS)}")
    if not isinstance(subject, LayerSubject) or subject.spec.cache is None:
        raise UsageError(f"--paths is for layers with a cache, and {subject.name} has none.")
    for mask in ("none", "left_padding"):
        if mask in subject.masks:
            call = layer_call(subject, dtype, mask)
            module, padding = made(subject, call.case, weights), call.inputs.padding_mask
            ways = [
                Way(value, module, _in_calls_of(subject, _PATHS[value], padding), dtype)
                for value in values
            ]
            yield from _with_first(call.words, ways, call.tensors)


def _in_calls_of(
    layer: LayerSubject, tokens: int | None, padding: Tensor | None = None
) -> Callable[[nn.Module, Tensors], Tensor]:
    """Calls that give a layer so many tokens each; outputs of padding are left out."""

    def call(module: nn.Module, tensors: Tensors) -> Tensor:
        (hidden,) = tensors
        if tokens is None:
            whole = layer.call(module, hidden, padding)[0]
            return whole if padding is None else whole[padding]
        cache, outputs, seen = layer.new_cache(module, len(hidden)), [], 0
        for part in torch.split(hidden, tokens, 1):
            seen += part.shape[1]
            mask = None if padding is None else padding[:, :seen]
            output, cache = layer.call(module, part, mask, cache)
            outputs.append(output)
        whole = torch.cat(outputs, 1)
        return whole if padding is None else whole[padding]

    return call


QUESTIONS: dict[str, Callable[..., Iterator[Pair]]] = {
    "paths": _paths,
    "dtype": _dtypes,
    "batch": _batch,
}
"""What can be asked of one subject, by the option of the command."""
