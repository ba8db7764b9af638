"""An example of a call, read: what is called, its arguments by name, and the hidden states.

The modules of attention inside a model show theirs where the model runs once.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from attnbench.errors import StyleError, headline
from attnbench.styles import (
    TENSORS,
    computes_attention,
    is_attention,
    name_of,
    role_of,
    source_line_of,
)
from attnbench_plugins.adapters.calls.caches import copied
from attnbench_plugins.adapters.making.recipes import woken
from attnbench_plugins.adapters.trials.small_calls import repeatable

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
STATES = {2: ("LE",), 3: ("BLE", "LBE", "BEL"), 4: ("BEYX", "BYXE")}
"""Axes that hidden states of so many dimensions may have."""


@dataclass(frozen=True)
class Example:
    """An example whose arguments have names.

    Args:
        callee: what is called.
        named: its arguments.
        hidden: the names of those that are the hidden states.
        states: the hidden states.
    """

    callee: Any
    named: Mapping[str, Any]
    hidden: tuple[str, ...]
    states: Tensor

    def another(self, *sizes: int) -> Any:
        """A copy of a module, as checks of copies and of traces compare two; a function itself."""
        if not isinstance(self.callee, nn.Module):
            return self.callee
        return woken(copied(self.callee))


def call_of(example: Any) -> Call:
    """The arguments of an example."""
    if isinstance(example, Mapping):
        return (), example
    if isinstance(example, tuple | list):
        is_pair = len(example) == 2 and isinstance(example[1], Mapping)
        if is_pair and isinstance(example[0], tuple | list):
            return tuple(example[0]), example[1]
        return tuple(example), {}
    return (example,), {}


def prepared(target: Any) -> Any:
    """A copy of a module in evaluation and in float32; a function as it is."""
    if not isinstance(target, nn.Module):
        return target
    try:
        module = copied(target)
    except Exception as error:
        raise StyleError(
            f"{called_name(target)} cannot be copied: {headline(error)}\nA tensor with a graph "
            "that the module keeps is the usual reason: detach it."
        ) from error
    if any(p.is_meta for p in (*module.parameters(), *module.buffers())):
        raise StyleError(f"{called_name(target)} is on the device meta, and so has no numbers.")
    module.eval()
    return module.float().cpu()


def shown_call(callee: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Example:
    """The example, called once."""
    leaves = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    if any(leaf.is_meta for leaf in leaves):
        raise StyleError("A tensor of the example is on the device meta, and so has no numbers.")
    same: dict[int, Tensor] = {}  # one tensor stays one, as in attention to itself
    plain = partial(_plain_once, same)
    args, kwargs = pytree.tree_map_only(Tensor, plain, (args, kwargs))
    function = callee.forward if isinstance(callee, nn.Module) else callee
    try:
        named = dict(inspect.signature(function).bind(*args, **kwargs).arguments)
    except TypeError as error:
        raise StyleError(f"{called_name(callee)} does not take its example: {error}") from error
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in named:
            named |= named.pop(name)
        elif parameter.kind is parameter.VAR_POSITIONAL and name in named:
            raise StyleError(
                f"{called_name(callee)} takes *{name}: give the example's arguments by name."
            )
    callee, named = _unpacked(callee, named)
    names = _hidden(named)
    embedded = None if names or not isinstance(callee, nn.Module) else _embedded(callee, named)
    if embedded is not None:
        callee, named, states = embedded
        names = ("hidden",)
    elif names:
        states = named[names[0]]
    else:
        raise StyleError(
            f"No argument in the example of {called_name(callee)} is a tensor of hidden states, of "
            "two dimensions and more, or token ids that an embedding of the module gets. Where it "
            "lies in a tuple or a dict, name a function that takes the tensor and makes that of it."
        )
    _run(callee, {**named, "hidden": states} if embedded else named)
    return Example(callee, named, names, states)


def _plain_once(same: dict[int, Tensor], tensor: Tensor) -> Tensor:
    """A tensor on the CPU in a wide dtype, the same one each time."""
    if id(tensor) not in same:
        wide = tensor.dtype not in (torch.float16, torch.bfloat16)
        plain = tensor.detach().cpu()
        same[id(tensor)] = plain if wide else plain.float()
    return same[id(tensor)]


class Packing(nn.Module):
    """A callee whose lists and tuples of tensors are given one by one."""

    def __init__(self, model: Any, lists: Mapping[str, tuple[str, ...]], kinds: Any) -> None:
        super().__init__()
        self.model, self.lists, self.kinds = model, dict(lists), kinds
        function = model.forward if isinstance(model, nn.Module) else model
        parameters = []
        for name, each in inspect.signature(function).parameters.items():
            parameters += [each.replace(name=part) for part in self.lists.get(name, (name,))]
        self.__signature__ = inspect.Signature(parameters)

    def forward(self, **given: Any) -> Any:
        """What the callee gives."""
        for name, parts in self.lists.items():
            given[name] = self.kinds[name](given.pop(part) for part in parts)
        return self.model(**given)


def _unpacked(callee: Any, named: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The callee and its arguments, with the tensors of lists and tuples one by one."""
    lists = {
        name: tuple(f"{name}_{place}" for place in range(len(value)))
        for name, value in named.items()
        if type(value) in (list, tuple)
        and role_of(name, "forward") in (None, *TENSORS)
        and value
        and all(isinstance(part, Tensor) and is_states(part) for part in value)
    }
    if not lists:
        return callee, dict(named)
    kinds = {name: type(named[name]) for name in lists}
    given: dict[str, Any] = {}
    for name, value in named.items():
        parts = lists.get(name)
        given |= {name: value} if parts is None else dict(zip(parts, value, strict=True))
    return Packing(callee, lists, kinds), given


def _run(callee: Any, named: Mapping[str, Any]) -> None:
    try:
        with repeatable(), torch.no_grad():
            callee(**copy.deepcopy(dict(named)))
    except Exception as error:
        place = source_line_of(error)
        raise StyleError(
            f"{called_name(callee)} raises on its own example: {headline(error)}"
            f"{f' at {place}' if place else ''}"
        ) from error


def _hidden(named: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the hidden states: of the first tensor that has that role, or of the first."""
    floating = {
        name: value
        for name, value in named.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() in STATES
    }
    tables = ("rotary", "cos", "sin", "mask", "padding", "memory_mask", "embedded_positions")
    likely = {n: v for n, v in floating.items() if role_of(n, "forward") not in tables}
    first = next((n for n in likely if role_of(n, "forward") in ("hidden", "query")), None)
    first = first or next(iter(likely), None)
    if first is None:
        return ()
    return tuple(name for name, value in named.items() if value is named[first])


class _Embedded(nn.Module):
    """A model whose token ids are replaced by hidden states, where its embedding gives them."""

    def __init__(self, model: nn.Module, embedding: str, ids: str) -> None:
        super().__init__()
        self.model, self.embedding, self.ids = model, embedding, ids

    def forward(self, hidden: Tensor, **given: Any) -> Any:
        """What the model gives for these hidden states in place of the first embedding's."""

        def replaced(*_: Any) -> Tensor:
            return hidden.clone()  # which the model may change in place

        hook = self.model.get_submodule(self.embedding).register_forward_hook(replaced)
        ids = torch.zeros(hidden.shape[:-1], dtype=torch.long, device=hidden.device)
        try:
            return self.model(**{self.ids: ids}, **given)
        finally:
            hook.remove()


def _embedded(
    model: nn.Module, named: Mapping[str, Any]
) -> tuple[nn.Module, dict[str, Any], Tensor] | None:
    """The model on hidden states in place of token ids, its other arguments, and the states."""
    ids = {n: v for n, v in named.items() if isinstance(v, Tensor) and not v.is_floating_point()}
    seen: list[tuple[str, str, Tensor]] = []

    def watched(place: str) -> Callable[..., None]:
        def note(module: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
            for name, value in ids.items():
                if given and given[0].shape == value.shape and torch.equal(given[0], value):
                    seen.append((place, name, output.detach()))

        return note

    with contextlib.ExitStack() as hooks:
        for place, part in model.named_modules():
            if isinstance(part, nn.Embedding):
                hooks.enter_context(part.register_forward_hook(watched(place)))
        _run(model, named)
    if not seen:
        return None
    place, name, states = seen[0]
    rest = {other: value for other, value in named.items() if other != name}
    return _Embedded(model, place, name), rest, states


def called_name(target: Any) -> str:
    """The name of what an example calls, for messages."""
    inner = target.model if isinstance(target, _Embedded) else target
    return name_of(inner)


def is_states(tensor: Tensor) -> bool:
    """Whether a tensor may hold the states of tokens or of one query of each item."""
    return tensor.is_floating_point() and tensor.dim() in (2, 3)


def seen_calls(model: nn.Module, batch: Any) -> list[tuple[str, nn.Module, Call]]:
    """The first call of each kind of attention module in a model, by a run on a batch.

    Args:
        model: a module; it runs in evaluation, and is left in the mode in which it was.
        batch: its arguments, as :func:`call_of` reads them.

    Returns:
        Where each is in the model, as of ``named_modules``, the module, and its arguments.

    Raises:
        StyleError: the run raises, or calls no module that looks like attention.
    """
    args, kwargs = call_of(batch)
    seen: dict[type, tuple[str, nn.Module, Call]] = {}

    def watching(place: str) -> Any:
        def note(module: nn.Module, given: tuple[Any, ...], named: Mapping[str, Any]) -> None:
            if type(module) not in seen:
                seen[type(module)] = place, module, copy.deepcopy((given, dict(named)))

        return note

    training = model.training
    try:
        with repeatable(), torch.no_grad(), contextlib.ExitStack() as hooks:
            for place, part in model.named_modules():
                if place and _attends(part):
                    hook = part.register_forward_pre_hook(watching(place), with_kwargs=True)
                    hooks.enter_context(hook)
            model.eval()(*args, **kwargs)
    except Exception as error:
        raise StyleError(
            f"{type(model).__name__} raises on the batch: {headline(error)}"
        ) from error
    finally:
        model.train(training)
    if not seen:
        raise StyleError(
            f"no module inside {type(model).__name__} that looks like attention is called. To "
            "check the model itself as a layer: attnbench.check(model, example=batch)."
        )
    return list(seen.values())


def _attends(module: nn.Module) -> bool:
    forwards = (vars(kind).get("forward") for kind in type(module).__mro__)
    return is_attention(type(module)) or any(map(computes_attention, forwards))
