"""The invariant on trees of tokens, as speculative decoding appends them to a cache."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation, RefusalError
from attnbench.invariants.caches.checks import has_cache
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import Look, layer_cases
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

_PATH, _MORE = 3, 3
"""Tokens of the first path, which can be kept by a crop, and of the branches behind it."""


def _takes_trees(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    if (reason := has_cache(subject)) is not None:
        return reason
    cache = subject.spec.cache
    if cache is None or cache.append_tree is None:
        return "its cache takes no trees: declare CacheSpec(append_tree=...)"
    room = subject.capacity > _PATH + _MORE + 3
    return None if room else "its cache has no room for a tree"


@invariant(
    kinds=("layer",),
    cases=lambda subject: layer_cases(subject, regimes=("normal",), dtypes=("float64", "float32")),
    applies=_takes_trees,
)
def tree_paths_equal_their_sequences(subject: Subject, case: Case) -> None:
    """Each token of a tree that is appended to a cache gets what it gets at the end of its own
    path, and a path that is kept goes on as its sequence.
    """
    look = Look(subject, case)
    parents = _tree(look)
    told = f"of the tree of parents {parents}"
    past = 1 + look.choose(min(6, look.subject.capacity - len(parents) - 2))
    shape = (case.lead[0], past + len(parents) + 2, case.query_size)
    hidden = look.other(look.hidden.new_zeros(shape))
    prefix, tree, more = hidden.tensor_split([past, past + len(parents)], 1)
    with torch.no_grad():
        cache = look.subject.new_cache(look.module, case.lead[0])
        _, cache = look.subject.call(look.module, prefix, None, cache)
        output, cache = _appended(look, tree, cache, parents)
        limits = rounding_of(look.subject, look.module, hidden).amax()
        for token in range(len(parents)):
            path = _ancestors(parents, token)
            whole = look.run(torch.cat([prefix, tree[:, path]], 1))[:, -1:]
            what = f"token {token} {told}, output"
            _judge(look, output[:, token : token + 1], whole, what, "its own sequence", limits)
        if look.subject.spec.cache is None or look.subject.spec.cache.crop is None:
            return
        try:
            cache = look.subject.crop(cache, past + _PATH)
        except NotImplementedError:
            return  # a refusal, which is no failure
        got, _ = look.subject.call(look.module, more, None, cache)
        whole = look.run(torch.cat([prefix, tree[:, :_PATH], more], 1))[:, -2:]
        what = f"after a crop to the first {_PATH} tokens {told}, output"
        _judge(look, got, whole, what, "this path's own sequence", limits)


def _appended(look: Look, tree: Tensor, cache: Any, parents: list[int]) -> tuple[Tensor, Any]:
    spec = look.subject.spec.cache
    assert spec is not None
    assert spec.append_tree is not None
    where = torch.tensor(parents, device=tree.device)
    try:
        found = spec.append_tree(look.module, tree, cache, where)
    except NotImplementedError as error:
        raise RefusalError(f"append_tree refuses the tree {parents}: {error}") from None
    output, kept = found if isinstance(found, tuple) else (found, None)
    if not isinstance(output, Tensor) or output.shape != tree.shape:
        shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise InvariantViolation(
            f"append_tree gave {shape}, but should give the output {tuple(tree.shape)}"
        )
    return output, cache if kept is None else kept


def _tree(look: Look) -> list[int]:
    """A path, and then tokens on any of those before."""
    parents = list(range(-1, _PATH - 1))
    return parents + [look.choose(len(parents) + more + 1) - 1 for more in range(_MORE)]


def _ancestors(parents: list[int], token: int) -> list[int]:
    path = [token]
    while parents[path[0]] >= 0:
        path.insert(0, parents[path[0]])
    return path


def _judge(
    look: Look, got: Tensor, expected: Tensor, what: str, other: str, limits: Tensor
) -> None:
    found = look.differs(got, expected, look.real(got), lambda: limits)
    if found is not None:
        look.accuse(found, got, expected, what, other)


attnbench_invariants = hook_of(__name__)
