"""The invariant on trees of tokens, as speculative decoding appends them to a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.errors import InvariantViolation, RefusalError
from attnbench.invariants.caches.checks import has_cache
from attnbench.invariants.toolkit.decorator import hook_of
from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_invariant
from attnbench.subject.layer import LayerSubject

_PATH, _MORE = 3, 3
"""Tokens of the first path, which can be kept by a crop, and of the branches behind it."""


def _takes_trees(subject: LayerSubject) -> str | None:
    if (reason := has_cache(subject)) is not None:
        return reason
    cache = subject.spec.cache
    if cache is None or cache.append_tree is None:
        return "its cache takes no trees: declare CacheSpec(append_tree=...)"
    room = subject.capacity > _PATH + _MORE + 3
    return None if room else "its cache has no room for a tree"


@layer_invariant(regimes=("normal",), dtypes=("float64", "float32"), applies=_takes_trees)
def tree_paths_equal_their_sequences(layer: LayerCase) -> None:
    """Each token of a tree that is appended to a cache gets what it gets at the end of its own
    path, and a path that is kept goes on as its sequence.
    """
    parents = _tree(layer)
    told = f"of the tree of parents {parents}"
    past = 1 + layer.choose(min(6, layer.subject.capacity - len(parents) - 2))
    shape = (len(layer.hidden), past + len(parents) + 2, layer.hidden.shape[-1])
    hidden = layer.other(layer.hidden.new_zeros(shape))
    prefix, tree, more = hidden.tensor_split([past, past + len(parents)], 1)
    with torch.no_grad():
        output, cache = _appended(layer, prefix, tree, parents)
        limits = layer.limits(hidden).amax()

        def judge(got: Tensor, expected: Tensor, what: str, other: str) -> None:
            real = layer.real(got)
            layer.expect(got, expected, real, what, other, allowed=lambda: limits)

        for token in range(len(parents)):
            path = _ancestors(parents, token)
            whole = layer.run(torch.cat([prefix, tree[:, path]], 1))[:, -1:]
            try:
                what = f"token {token} {told}, output"
                judge(output[:, token : token + 1], whole, what, "its own sequence")
            except InvariantViolation as found:
                sees = []
                for other in range(-past, len(parents)):
                    changed = hidden.clone()
                    changed[:, past + other] = layer.other(changed[:, 0])
                    again, _ = _appended(layer, changed[:, :past], changed[:, past:-2], parents)
                    if bool(((again - output)[:, token].abs() > limits).any()):
                        sees.append(other)
                just = sees == [*range(-past, 0), *path]
                raise found.reworded(
                    str(found), cause="layer_tree_weights" if just else "layer_tree"
                ) from None
        if layer.subject.spec.cache is None or layer.subject.spec.cache.crop is None:
            return
        try:
            cache = layer.subject.crop(cache, past + _PATH)
        except NotImplementedError:
            return  # a refusal, which is no failure
        got, _ = layer.call(more, None, cache)
        whole = layer.run(torch.cat([prefix, tree[:, :_PATH], more], 1))[:, -2:]
        what = f"after a crop to the first {_PATH} tokens {told}, output"
        judge(got, whole, what, "this path's own sequence")


def _appended(
    layer: LayerCase, prefix: Tensor, tree: Tensor, parents: list[int]
) -> tuple[Tensor, Any]:
    """The output of a tree behind a prefix, and the cache of both."""
    _, cache = layer.call(prefix, None, layer.subject.new_cache(layer.module, len(prefix)))
    spec = layer.subject.spec.cache
    assert spec is not None
    assert spec.append_tree is not None
    where = torch.tensor(parents, device=tree.device)
    try:
        found = spec.append_tree(layer.module, tree, cache, where)
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


attnbench_invariants = hook_of(__name__)
