"""The invariant on trees of tokens, as speculative decoding appends them to a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench import InvariantViolation, RefusalError
from attnbench.testing import LayerCase, LayerSubject, layer_invariant
from attnbench_plugins.properties.caches.checks import has_cache

_PATH, _MORE = 3, 3
"""Tokens of the first path, which can be kept by a crop, and of the branches behind it."""


def _takes_trees(subject: LayerSubject) -> str | None:
    if (reason := has_cache(subject, "append_tree")) is not None:
        return reason
    room = subject.capacity > 2 * _PATH + _MORE
    return None if room else "its cache has no room for a tree"


@layer_invariant(
    hint="mask or positions are not those of each token's own path",
    regimes=("normal",),
    dtypes=("float64", "float32"),
    applies=_takes_trees,
)
def tree_paths_equal_their_sequences(layer: LayerCase) -> None:
    """Each token of a tree that is appended to a cache gets what it gets at the end of its own
    path, and a path that is kept goes on as its sequence, with another tree too.
    """
    trees = [_tree(layer), _tree(layer)]
    size = len(trees[0])
    past = 1 + layer.choose(min(6, layer.subject.capacity - _PATH - size))
    shape = (len(layer.hidden), past + 2 * size + 2, layer.hidden.shape[-1])
    hidden = layer.other(layer.hidden.new_zeros(shape))
    with torch.no_grad():
        outputs = _outputs(layer, hidden, past, trees)
        limits, kept = layer.limits(hidden).amax(), [*range(past)]

        def judge(got: Tensor, slots: list[int], what: str, other: str) -> None:
            expected, real = layer.run(hidden[:, slots])[:, -got.shape[1] :], layer.real(got)
            layer.expect(got, expected, real, what, other, allowed=lambda: limits)

        for number, parents in enumerate(trees[: len(outputs)]):
            start, second = past + number * size, " behind a path that was kept" * number
            change = f"of the tree of parents {parents}{second}"
            for token in range(size):
                slots = [*kept, *(start + place for place in _ancestors(parents, token))]
                got, what = outputs[number][:, token : token + 1], f"token {token} {change}, output"
                judge(got, slots, what, "its own sequence")
            kept += range(start, start + _PATH)
        if len(outputs) > len(trees):
            slots = [*kept, *range(shape[1] - 2, shape[1])]
            what = f"after a crop to the first {_PATH} tokens {change}, output"
            judge(outputs[-1], slots, what, "this path's own sequence")


def _outputs(layer: LayerCase, hidden: Tensor, past: int, trees: list[list[int]]) -> list[Tensor]:
    """The outputs of trees behind a prefix, each cropped to its first path, and of two more tokens;
    only the first tree's if the cache cannot be cropped.
    """
    prefix, *parts, more = torch.split(hidden, [past, *map(len, trees), 2], 1)
    _, cache = layer.call(prefix, None, layer.subject.new_cache(layer.module, len(prefix)))
    outputs: list[Tensor] = []
    for part, parents in zip(parts, trees, strict=True):
        output, cache = _appended(layer, part, cache, parents)
        outputs.append(output)
        try:
            cache = layer.subject.crop(cache, past + _PATH * len(outputs))
        except NotImplementedError:
            return outputs  # there is no crop, or it refuses, which is no failure
    return [*outputs, layer.call(more, None, cache)[0]]


def _appended(layer: LayerCase, tree: Tensor, cache: Any, parents: list[int]) -> tuple[Tensor, Any]:
    """The output of a tree behind what is in a cache, and the cache of both."""
    append: Any = getattr(layer.subject.spec.cache, "append_tree", None)
    where = torch.tensor(parents, device=tree.device)
    try:
        found = append(layer.module, tree, cache, where)
    except NotImplementedError as error:
        raise RefusalError(f"append_tree refuses the tree {parents}: {error}") from None
    output, kept = found if isinstance(found, tuple) else (found, None)
    if not isinstance(output, Tensor) or output.shape != tree.shape:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InvariantViolation(
            f"append_tree gave {shape}, but should give the output {tuple(tree.shape)}"
        )
    return output, cache if kept is None else kept


def _tree(layer: LayerCase) -> list[int]:
    """A path, and then tokens on any of those before."""
    parents = list(range(-1, _PATH - 1))
    return parents + [layer.choose(len(parents) + more + 1) - 1 for more in range(_MORE)]


def _ancestors(parents: list[int], token: int) -> list[int]:
    path = [token]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path
