"""A module or a function with an example of its call: nothing is made, other calls are cut from it.

What varies are the hidden states: the first tensor of numbers, or what an embedding makes of token
ids. Every other tensor comes from the example, of its first item for all items, and of its first
tokens for fewer tokens. Which of its axes are items and tokens is tried where sizes agree.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from attnbench import LayerSpec, MechanismSpec, ScoringSpec
from attnbench.errors import StyleError
from attnbench.styles import NOTHING, TENSORS, Argument, call_arguments, name_of, role_of
from attnbench_plugins.adapters.adaptation import bound_spec, spec_of
from attnbench_plugins.adapters.binding import Binding, Given, Mask
from attnbench_plugins.adapters.making.recipes import Recipe
from attnbench_plugins.adapters.refusing import Raised
from attnbench_plugins.adapters.shown_call import (
    STATES,
    Example,
    call_of,
    called_name,
    is_states,
    prepared,
    shown_call,
)
from attnbench_plugins.adapters.trials.fitting import Prior, bound, pools, with_values
from attnbench_plugins.adapters.trials.mask_trials import masked
from attnbench_plugins.adapters.trials.small_calls import Callee, Calls, close
from attnbench_plugins.adapters.trials.trial_layouts import LAYOUTS, trials, tried

_FEWEST = 5


def example_spec(
    target: Any, example: Any, **fields: Any
) -> MechanismSpec | ScoringSpec | LayerSpec:
    """The spec of a module or a function that is called as in an example.

    Args:
        target: a module, which is copied and left as it is, or a function.
        example: ``(args, kwargs)``, a tuple of arguments, a dict of them by name, or a tensor.
        fields: further fields of the spec.

    Raises:
        StyleError: the call raises, or holds no hidden states of at least five tokens, or no
            smaller call can be cut from it.
    """
    if inspect.isclass(target) or isinstance(target, Recipe):
        made = target.target if isinstance(target, Recipe) else target
        raise StyleError(
            f"{name_of(made)} is a class, and an example is a call of an instance: make one in "
            "the file, as module = ..., and name that."
        )
    shown = shown_call(prepared(target), *call_of(example))
    raised: list[Raised] = []
    if (attending := _attending(target, shown, raised, fields)) is not None:
        return attending
    if (step := _step(shown, raised)) is not None:
        return bound_spec(target, *step, {"name": called_name(target), **fields})
    mixing: list[tuple[Callee, Binding]] = []
    for is_fixed, layout in itertools.product((False, True), STATES.get(shown.states.dim(), ())):
        callee = Callee(shown.another, shown.states.shape[layout.index("E")])
        found = _as_layer(shown, callee, layout, is_fixed)
        if isinstance(found, str):
            whole = f", {shown.states.shape[1]} tokens" if is_fixed else ""
            raised += [Raised(f"{layout}{whole}: {found}")] if not whole or layout == "BLE" else []
        elif "B" not in layout or not Calls(callee, found).mixes():
            return _spec(target, shown, callee, found, fields)
        elif _keeps_equal_items(Calls(callee, found)):
            mixing.append((callee, found))
    if mixing:  # its items know each other, and a check says so
        return _spec(target, shown, *mixing[0], fields)
    said, shape = "\n  ".join(dict.fromkeys(raised)), shown.states.shape
    is_told_apart = len({*shape}) == len(shape) and min(shape[-2:]) >= _FEWEST
    ways = _WAYS if is_told_apart else f"{_APART}; or one {_WAYS}"
    raise StyleError(
        f"{called_name(target)}: no call of fewer tokens or other items can be cut from the "
        f"example, whose hidden states are {tuple(shape)}:\n  {said}\nGive an example {ways}"
    )


def _attending(
    target: Any, shown: Example, raised: list[Raised], fields: Mapping[str, Any]
) -> MechanismSpec | ScoringSpec | LayerSpec | None:
    """The spec of what takes a query and keys by the names of its arguments, if a call fits."""
    known = {"name": called_name(target), **fields}
    for prior in _as_attention(shown):
        sides = _sides(shown, -2 if prior.layouts == _FEATURES_FIRST else -1)
        callee = Callee(shown.another, sides[0], sides)
        try:
            if prior.given:  # which a style would leave out
                return bound_spec(target, *bound(shown.callee, callee, prior), known)
            return spec_of(shown.callee, callee, prior, **known)
        except StyleError as error:  # what follows needs no names
            raised.append(Raised(str(error).partition("\n")[0].removeprefix(f"{known['name']}: ")))
    return None


def _as_attention(shown: Example) -> Iterator[Prior]:
    """What an example says of a call of a query and other keys, before anything is tried.

    Keys of other features than the query's may be those of a layer, whose output has the query's.
    """
    if not _attends(shown):
        return
    named = [a for a in _arguments(shown) if a.name in shown.named]
    axes, slots = [one for one, _ in _layouts(shown)], _slots(shown)
    held = _HELD if "hidden" in _by_role(shown) else _HELD[:1]
    others = {
        a.name: _as_given(replace(a, role=None), shown, slots, axes)
        for a in named
        if a.role is None or (a.role in held and isinstance(shown.named[a.name], Tensor))
    }
    roles = {a.name: a.role for a in named if a.role in TENSORS and not a.required}
    given = {name: each for name, each in others.items() if each.given}
    keys = _keys(shown)
    if shown.states.shape[1:2] == keys.shape[1:2] and shown.states.shape[-1] != keys.shape[-1]:
        yield Prior(_FEATURES_FIRST, roles, given)
    yield Prior(_layouts(shown), roles, given)
    if len({*_sides(shown)}) > 1:
        as_layer = {"query": "hidden", "key": "memory", "value": "memory"}
        roles = {a.name: as_layer.get(a.role, a.role) for a in named if a.role in TENSORS}
        yield Prior(_layouts(shown), roles, given)


_FEATURES_FIRST = (("BEL", "BES"),)
_HELD = ("embedded_positions", "memory_mask", "memory_padding")
"""Roles of what is held as in an example: of masks those of a layer's second sequence alone."""


def _sides(shown: Example, axis: int = -1) -> tuple[int, int, int]:
    """The features of query, key and value, which lie along an axis."""
    sides = (shown.states, _keys(shown), _keys(shown, "value"))
    query, key, value = (tensor.shape[axis] for tensor in sides)
    return query, key, value


def _attends(shown: Example) -> bool:
    """Whether an example gives a query, and other keys or a memory.

    One tensor that is all of them is a layer's hidden states, but where it has heads.
    """
    roles = {*_by_role(shown)}
    others = {"key", "memory", "value"} & roles
    is_apart = len(shown.hidden) == 1 or (shown.states.dim() == 4 and {"query", "key"} <= roles)
    return is_apart and bool({"query", "hidden"} & roles) and bool(others)


def _by_role(shown: Example) -> dict[str | None, Tensor]:
    """The tensors of an example by the roles of their names."""
    return {role_of(n, "forward"): v for n, v in shown.named.items() if isinstance(v, Tensor)}


def _keys(shown: Example, first: str = "key") -> Tensor:
    """The keys of an example, or its values, or its memory where it has none of them."""
    roles = _by_role(shown)
    return next(roles[role] for role in (first, "key", "memory", "value") if role in roles)


def _layouts(shown: Example) -> tuple[tuple[str, str], ...]:
    """The axes that query and keys of an example may have; any, if none fit."""
    keys = _keys(shown)
    last = [pair for pair in LAYOUTS if pair not in _FEATURES_FIRST]
    fitting = [(one, two) for one, two in last if _fit(shown.states, one, keys, two)]
    return tuple(fitting) or LAYOUTS


def _slots(shown: Example) -> int:
    """The number of keys in an example: the size that they have and the query has not, or L."""
    keys = _keys(shown)
    apart = [n for n in keys.shape[:-1] if n not in shown.states.shape[:-1]]
    return next(iter(apart or [n for n in keys.shape[:-1] if n != shown.states.shape[0]]), 0)


_APART = f"of at least {_FEWEST} tokens, in which the numbers of items, tokens and features differ"
_WAYS = (
    "of a function or module of hidden states (B, L, E), or of a query (B, E) and a memory "
    "(B, S, E), which makes what else a call needs for any numbers of them."
)


def _step(shown: Example, raised: list[Raised]) -> tuple[Callee, Binding] | None:
    """How a decoder's step is called, if an example is one: one query an item, over a memory.

    Keys that are given beside the values, as projected ones are, are theirs.
    """
    states = {n: v for n, v in shown.named.items() if isinstance(v, Tensor) and is_states(v)}
    mixing: list[tuple[Callee, Binding]] = []
    for names in (*itertools.permutations(states, 3), *itertools.permutations(states, 2)):
        query, *keys = (states[name] for name in names)
        layouts = [
            (a, b) for a, b in LAYOUTS if "L" not in a and all(_fit(query, a, k, b) for k in keys)
        ]
        sides = tuple(tensor.shape[-1] for tensor in (query, keys[0], keys[-1]))
        callee = Callee(shown.another, sides[0], (sides[0], sides[1], sides[2]))
        roles = ("query", "key", "value") if len(keys) == 2 else ("query", "memory")
        mains = dict(zip(names, roles, strict=True))
        for layout in layouts:
            slots = keys[0].shape[layout[1].index("S")]
            named = [_as_given(each, shown, slots) for each in _arguments(shown)]
            apart, others = trials(callee, named, mains, raised, [layout])
            for binding in (one for one in (*apart, *others) if pools(callee, one)):
                found = masked(callee, with_values(callee, binding), named)
                if binding in apart:
                    return callee, found
                mixing.append((callee, found))  # its items know each other, and a check says so
    return mixing[0] if mixing else None


def _arguments(shown: Example) -> list[Argument]:
    """The arguments of what an example calls."""
    return call_arguments(shown.callee) or []


def _as_given(
    argument: Argument, shown: Example, slots: int, layouts: Sequence[str] = ()
) -> Argument:
    """An argument that an example gives, with its value where no role says what to try.

    Args:
        argument: the argument.
        shown: the example.
        slots: its number of keys.
        layouts: axes that its query may have.
    """
    if argument.name not in shown.named:
        return argument
    value, states = shown.named[argument.name], shown.states.shape
    if argument.role not in (None, *TENSORS):
        return replace(argument, default=NOTHING)
    items = {states[each.index("B")] for each in layouts if "B" in each}
    sizes = {"B": items or {states[0]}, "S": {slots} - {1}}
    for letter in "LH":
        own = {states[each.index(letter)] for each in layouts if letter in each}
        sizes[letter] = own - {1}
    given: tuple[Any, ...] = (value,)
    if isinstance(value, Tensor) and sizes["S"] and value.shape[:1] == (states[0] * slots,):
        value = value.reshape(states[0], slots, *value.shape[1:])
        given = (Given(value, ("bS" + "." * (value.dim() - 2),)),)
    elif isinstance(value, Tensor):
        given = _cuts(value, sizes)
    return replace(argument, role=None, default=NOTHING, given=given)


def _cuts(value: Any, sizes: Mapping[str, Collection[int]]) -> tuple[Given, ...]:
    """What an example gives, with what axes its tensors may have, what says most first.

    Args:
        value: a tensor, or a tree with some.
        sizes: those that each letter of an axis may have; two axes may be tokens without keys.
    """
    each = []
    for leaf in pytree.tree_leaves(value):
        shape = leaf.shape if isinstance(leaf, Tensor) else ()
        letters = ["".join(n for n, known in sizes.items() if size in known) for size in shape]
        ways = map("".join, itertools.product(*[f"{known}." for known in letters]))
        once = {*sizes} - ({*"L"} if "S" not in sizes else set())
        found = [way for way in ways if all(way.count(letter) < 2 for letter in once)]
        found.sort(key=lambda axes: (-axes.count("B"), axes.count("."), axes.find("B")))
        each.append(found[:6])
    return tuple(Given(value, axes) for axes in itertools.islice(itertools.product(*each), 24))


def _fit(state: Tensor, one: str, states: Tensor, other: str) -> bool:
    """Whether a query and a memory have these axes, with as many items and more than one slot."""
    if (state.dim(), states.dim()) != (len(one), len(other)):
        return False
    sizes = [*zip(one, state.shape, strict=True), *zip(other, states.shape, strict=True)]
    items = {size for letter, size in sizes if letter == "B"}
    slots = [size for letter, size in sizes if letter == "S"]
    return (
        len(items) == 1 and min(slots) > 1 and all(n == 1 for letter, n in sizes if letter == "1")
    )


def _as_layer(shown: Example, callee: Callee, layout: str, is_fixed: bool) -> Binding | str:
    """How an example's hidden states and what comes with them are cut, or why they cannot be.

    Args:
        shown: the example.
        callee: what it calls.
        layout: axes of its hidden states.
        is_fixed: whether it takes as many tokens as the example has, as a table has a row for each.
    """
    sizes = dict(zip(layout, shown.states.shape, strict=True))
    items, tokens = sizes.get("B", 1), sizes.get("L", 0)
    if 0 < tokens < _FEWEST:
        return f"the example has {tokens} tokens"
    if is_fixed and not layout.endswith("E"):
        return "it is tried at any number of tokens alone"
    whole = (tokens or sizes["Y"] * sizes["X"]) if is_fixed else 0
    way = {"layout": layout, "tokens": whole}
    mains = dict.fromkeys(shown.hidden, "hidden")
    given = [Argument(name, role) for name, role in mains.items()]
    for name, value in shown.named.items():
        if name not in mains:  # of no other sequence do calls have another
            role = role_of(name, "forward")
            windows = {n for n in range(2, items) if items % n == 0}
            cut = _cuts(value, {"B": {items}, "L": {tokens}, "W": windows})
            given.append(Argument(name, None if role in TENSORS else role, given=cut))
    free = [replace(a, given=()) if _is_mask_of_items(a) else a for a in given]
    free += [a for a in _arguments(shown) if a.role in _MASKS and a.name not in shown.named]
    asked = [a for a in free if a.role in _MASKS and not a.given]
    found = tried(callee, free, mains, way, widens=True) if asked else ""
    if isinstance(found, Binding):
        form = masked(callee, found, asked)
        ranks = {n: v.dim() for n, v in shown.named.items() if isinstance(v, Tensor)}
        if form.masks and all(
            len(m.axes) == ranks.get(n, len(m.axes)) for n, m in form.masks.items()
        ):
            return form
    held = tried(callee, given, mains, way, widens=True)
    if isinstance(held, str) or not isinstance(found, Binding):
        return held
    return held.replace(unread=tuple(a.name for a in asked if a.name in shown.named))


_MASKS = ("padding", "mask")


def _is_mask_of_items(argument: Argument) -> bool:
    """Whether calls may have another mask for it; one of all items belongs to their tokens."""
    if argument.role not in _MASKS:
        return False
    own = argument.given[0].tree
    is_bias = isinstance(own, Tensor) and own.is_floating_point() and len(torch.unique(own)) > 2
    return own is None or (not is_bias and any("B" in axes for axes in argument.given[0].axes))


def _keeps_equal_items(calls: Calls) -> bool:
    """Whether equal items get the output that one of them gets alone."""
    one = calls.tensors()[0][:1]
    alone, many = calls([one]), calls([one.repeat(3, *[1] * (one.dim() - 1))])
    return alone is not None and many is not None and close(many, alone.expand(many.shape))


def _hides_an_item(mask: Any, form: Mask) -> bool:
    """Whether a mask of an example, read in this form, leaves an item nothing."""
    if not isinstance(mask, Tensor) or form.says == "lengths":
        return False
    shown = (mask != 0) == (form.says not in ("hides", "zeros"))
    shown = mask > -1 if form.says == "added" else shown
    return not bool((shown.flatten(1).any(1) if "B" in form.axes[:1] else shown.any()).all())


def _spec(
    target: Any, shown: Example, callee: Callee, binding: Binding, fields: Mapping[str, Any]
) -> MechanismSpec | ScoringSpec | LayerSpec:
    own = [name for name in binding.masks if shown.named.get(name) is not None]
    said = [f"masks of its own in place of the example's {name}" for name in own]
    blind = [n for n in own if _hides_an_item(shown.named[n], binding.masks[n])]
    said += [f"**the example's {name} hides all from an item**" for name in blind]
    known = {"name": called_name(target), "sizes": lambda size: callee.width, **fields}
    return bound_spec(target, callee, binding, known, tuple(said))
