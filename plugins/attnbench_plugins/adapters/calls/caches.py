"""Caches of arbitrary modules: passed in, returned, or stored in the module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from attnbench import CacheSpec

KEPT = ("argument", "returned", "module")
"""Where a module has its cache: in an argument, in its result, or in itself."""

_OWN = vars(nn.Module()).keys()


class Held:
    """The cache of a module, and the number of tokens in it.

    Args:
        value: the module's own cache; for ``kept="module"``, the state of its submodules.
        module: the module that the state belongs to, shared by copies of the cache.
        returned: whether the cache that a call gives back is that of the next.
    """

    def __init__(self, value: Any, module: nn.Module | None = None, returned: bool = False) -> None:
        self.value, self.module, self.returned, self.length = value, module, returned, 0

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        twin = Held(copy.deepcopy(self.value, memo), self.module, self.returned)
        twin.length = self.length
        return twin

    def take(self, result: Any) -> None:
        """Replace the cache by the one that a call returned, if it did."""
        if self.module is not None:
            return
        others = list(result[1:]) if isinstance(result, tuple | list) else []
        named = getattr(result, "past_key_values", None)
        others = [x for x in (others if named is None else [named]) if x is not None]
        own = type(self.value)
        alike = [x for x in others if type(x) is own and not isinstance(x, Tensor)]
        if alike:
            self.value = alike[-1]
        elif self.returned and others:  # a tensor beside a cache is one of weights
            self.value = ([x for x in others if not isinstance(x, Tensor)] or others)[-1]

    @contextmanager
    def installed(self) -> Iterator[Any]:
        """Put this cache into its module within the context, and restore its state afterwards."""
        module = self.module
        if module is None:
            yield self.value
            return
        rest = _state(module)
        _install(module, self.value)
        try:
            yield module
        finally:
            self.value = _state(module)
            _install(module, rest)

    def ask(self, operation: Any, *arguments: Any) -> Any:
        """What an operation on the module's own cache gives."""
        with self.installed() as own:
            return operation(own, *arguments)

    def change(self, operation: Any, argument: Any) -> Held:
        """Change the module's own cache, in place or to what the operation gives."""
        given = self.ask(operation, argument)
        if given is not None and self.module is None:
            self.value = given
        return self


def copied(module: nn.Module, memo: dict[int, Any] | None = None) -> Any:
    """A copy of a module, also of one that keeps tensors which it computed, as weight_norm does."""
    kept = [value for part in module.modules() for value in vars(part).values()]
    computed = [value for value in kept if isinstance(value, Tensor) and not value.is_leaf]
    memo = {} if memo is None else memo
    memo.update({id(tensor): tensor.detach().clone() for tensor in computed})
    return copy.deepcopy(module, memo)


def drop_graphs(module: Any) -> None:
    """Detach the tensors that a call left on a module, since none with a graph can be copied."""
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for name, kept in [*vars(part).items(), *part._buffers.items()]:
            if isinstance(kept, Tensor) and kept.grad_fn is not None:
                setattr(part, name, kept.detach())


def _state(module: nn.Module) -> dict[str, dict[str, Any]]:
    """The buffers and plain attributes of a module and its submodules."""
    return {
        path: {
            **{k: v for k, v in vars(part).items() if k not in _OWN or k == "_buffers"},
            "_buffers": dict(part._buffers),
        }
        for path, part in module.named_modules()
    }


def _install(module: nn.Module, state: dict[str, dict[str, Any]]) -> None:
    for path, part in module.named_modules():
        for name in [k for k in vars(part) if k not in _OWN and k not in state[path]]:
            delattr(part, name)
        for name, value in state[path].items():
            vars(part)[name] = dict(value) if name == "_buffers" else value


def _selecting(axis: int) -> Callable[[Any, Tensor], Any]:
    def select(value: Any, index: Tensor) -> Any:
        return tree_map_only(Tensor, lambda tensor: tensor.index_select(axis, index), value)

    return select


def _crop(value: Any, length: int) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor[..., :length, :], value)


_TUPLES = CacheSpec(new=lambda module, batch_size: None, select=_selecting(0), crop=_crop)
"""A cache of nested tuples or lists of ``(B, ..., slots, features)``, initially ``None``."""


def tuples_like(value: Any, rows: int, slots: int) -> CacheSpec:
    """The operations on tuples that are known, by those after a call on ``slots`` tokens.

    Keys and values may be stacked, so that rows are not first, and a number may count the slots.
    """
    leaves = tree_leaves(value)
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, Tensor)]
    counts = any(isinstance(leaf, int | float) for leaf in leaves)
    least = min((len(shape) for shape in shapes), default=0)
    axes = [axis for axis in range(least) if all(shape[axis] == rows for shape in shapes)]
    cropped = bool(axes) and all(shape[-2:-1] == (slots,) for shape in shapes)
    return CacheSpec(
        new=_TUPLES.new,
        select=_selecting(axes[0]) if axes else None,
        crop=_crop if cropped and not counts else None,
    )


def held_cache(spec: CacheSpec | None, kept: str) -> CacheSpec | None:
    """Adapt the cache of a module to that of a layer."""
    # in a module the number of earlier tokens says which slots count
    usual = {"returned": _TUPLES, "module": CacheSpec(new=_TUPLES.new)}.get(kept)
    if (known := spec or usual) is None:
        return None

    def new(module: Any, batch_size: int) -> Held:
        if kept == "module":  # its own state, made ready for a batch
            held = Held(copy.deepcopy(_state(module.callee)), module.callee)
            with held.installed() as own:
                known.new(own, batch_size)
            return held
        return Held(known.new(module.callee, batch_size), returned=kept == "returned")

    def crop(held: Held, length: int) -> Held:
        held.change(known.crop, length)
        held.length = length
        return held

    return CacheSpec(
        new=new,
        select=known.select and (lambda held, index: held.change(known.select, index)),
        crop=known.crop and crop,
        length=known.length and (lambda held: held.ask(known.length)),
        capacity=known.capacity,
    )
