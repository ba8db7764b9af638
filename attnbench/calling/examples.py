"""A module or a function with an example of its call: nothing is made, other calls are cut from it.

What varies are the hidden states: the first tensor of numbers, or what an embedding makes of token
ids. Every other tensor comes from the example, of its first item for all items, and of its first
tokens for fewer tokens. Which of its axes are items and tokens is tried where sizes agree.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from attnbench.calling.adaptation import bound_spec, spec_of
from attnbench.calling.binding import Binding, Given
from attnbench.calling.fitting import Prior, bound, masked
from attnbench.calling.layer_call import Layer
from attnbench.calling.roles import role_of
from attnbench.calling.signature import NOTHING, Argument, arguments, forward_of
from attnbench.calling.trials import LAYOUTS, Callee, parts_of, repeatable, sums_to_one, trials
from attnbench.errors import StyleError, headline
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec

Call = tuple[tuple[Any, ...], Mapping[str, Any]]
_LAYOUTS = {2: ("LE",), 3: ("BLE", "LBE", "BEL"), 4: ("BEYX", "BYXE")}
_MOST_TRIALS = 200
_FEWEST = 5
_CLOSE = 1e-3


@dataclass(frozen=True)
class _Example:
    """An example whose arguments have names.

    Args:
        callee: what is called.
        named: its arguments.
        hidden: the names of those that are the hidden states.
        states: the hidden states.
        result: what the call gave.
    """

    callee: Any
    named: Mapping[str, Any]
    hidden: tuple[str, ...]
    states: Tensor
    result: Any

    def another(self, *sizes: int) -> Any:
        """A copy of a module, as checks of copies and of traces compare two; a function itself."""
        return copy.deepcopy(self.callee) if isinstance(self.callee, nn.Module) else self.callee


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
    shown = _called(_prepared(target), *call_of(example))
    if _attends(shown):
        width = shown.states.shape[-1]
        with contextlib.suppress(StyleError):  # what follows needs no names
            known = {"name": _name(target), **fields}
            callee = Callee(shown.another, width)
            given = {a.name: _as_given(a, shown) for a in _arguments(shown) if a.role is None}
            given = {name: each for name, each in given.items() if each.given is not NOTHING}
            if given:  # which a style would leave out
                return bound_spec(target, *bound(shown.callee, callee, Prior(given=given)), known)
            return spec_of(shown.callee, callee, **known)
    if (step := _step(shown)) is not None:
        return bound_spec(target, *step, {"name": _name(target), **fields})
    raised: list[str] = []
    for layout in _LAYOUTS.get(shown.states.dim(), ()):
        width = shown.states.shape[layout.index("E")]
        callee = Callee(shown.another, width)
        for binding in itertools.islice(_bindings(shown, layout), _MOST_TRIALS):
            problem = _differs(callee, binding, shown)
            if not problem:
                return _spec(target, callee, _with_mask(callee, binding), fields)
            raised.append(f"{layout}: {problem}")
    said = "\n  ".join(dict.fromkeys(raised[:6])) or "it gives no tensor of these items and tokens"
    raise StyleError(
        f"{_name(target)}: no call of fewer tokens or other items can be cut from the example, "
        f"whose hidden states are {tuple(shown.states.shape)}:\n  {said}\n{_advice(shown.states)}"
    )


def _attends(shown: _Example) -> bool:
    """Whether an example gives a query, and other keys or a memory."""
    roles = {role_of(n, "forward") for n, v in shown.named.items() if isinstance(v, Tensor)}
    return len(shown.hidden) == 1 and "query" in roles and bool({"key", "memory", "value"} & roles)


def _advice(states: Tensor) -> str:
    """What to do about an example of which no other call can be cut."""
    *sizes, width = states.shape
    if max(sizes) < _FEWEST:
        return f"Give an example of at least {_FEWEST} tokens."
    if len({*sizes, width}) <= len(sizes):
        return "Give an example in which the numbers of items, tokens and features differ."
    return (
        "Wrap it in a function or module of hidden states (B, L, E), or of a query and a memory, "
        "which makes what else a call needs for any numbers of items and tokens, and give an "
        "example of that."
    )


def _step(shown: _Example) -> tuple[Callee, Binding] | None:
    """How a decoder's step is called, if an example is one: one query an item, over a memory."""
    pairs = itertools.permutations(
        [(name, v) for name, v in shown.named.items() if isinstance(v, Tensor) and _is_states(v)], 2
    )
    named = [_as_given(each, shown) for each in _arguments(shown)]
    for (query, state), (memory, states) in pairs:
        layouts = [(a, b) for a, b in LAYOUTS if "L" not in a and _fit(state, a, states, b)]
        sides = (state.shape[-1], states.shape[-1], states.shape[-1])
        callee = Callee(shown.another, sides[0], sides)
        apart, _, _ = trials(callee, named, {query: "query", memory: "memory"}, layouts)
        for binding in [each for each in apart if each.weights][:1]:
            return callee, masked(callee, binding, named)
    return None


def _arguments(shown: _Example) -> list[Argument]:
    """The arguments of what an example calls."""
    own = shown.callee if isinstance(shown.callee, _Packing) else forward_of(shown.callee)
    return [each for each in arguments(own, "forward") or [] if each.name != "self"]


def _as_given(argument: Argument, shown: _Example) -> Argument:
    """An argument that an example gives, with its value where no role says what to try."""
    if argument.name not in shown.named:
        return argument
    value, items = shown.named[argument.name], shown.states.shape[0]
    if argument.role not in (None, *_SEQUENCES):
        return replace(argument, default=NOTHING)
    if isinstance(value, Tensor):
        axes = "".join("B" if n == items and not at else "." for at, n in enumerate(value.shape))
        value = Given(value, (axes,))
    return replace(argument, default=NOTHING, given=value)


def _is_states(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dim() in (2, 3)


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


def _prepared(target: Any) -> Any:
    """A copy of a module in evaluation, in float32 and without dropout; a function as it is."""
    if not isinstance(target, nn.Module):
        return target
    try:
        module = copy.deepcopy(target)
    except Exception as error:
        raise StyleError(
            f"{_name(target)} cannot be copied: {headline(error)}\nA tensor with a graph that the "
            "module keeps is the usual reason: detach it."
        ) from error
    if any(p.is_meta for p in (*module.parameters(), *module.buffers())):
        raise StyleError(f"{_name(target)} is on the device meta, and so has no numbers.")
    for part in module.modules():
        for name, value in vars(part).items():
            if isinstance(value, float) and role_of(name, "constructor") == "dropout":
                setattr(part, name, 0.0)
    return module.float().cpu().eval()


def _called(callee: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> _Example:
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
        raise StyleError(f"{_name(callee)} does not take its example: {error}") from error
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD and name in named:
            named |= named.pop(name)
        elif parameter.kind is parameter.VAR_POSITIONAL and name in named:
            raise StyleError(
                f"{_name(callee)} takes *{name}: give the example's arguments by name."
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
            f"The example of {_name(callee)} has no tensor of hidden states, of two dimensions and "
            "more, and no token ids that an embedding of the module gets."
        )
    given = {**named, "hidden": states} if embedded else named
    return _Example(callee, named, names, states, _result(callee, given))


def _plain_once(same: dict[int, Tensor], tensor: Tensor) -> Tensor:
    """A tensor on the CPU in a wide dtype, the same one each time."""
    if id(tensor) not in same:
        wide = tensor.dtype not in (torch.float16, torch.bfloat16)
        plain = tensor.detach().cpu()
        same[id(tensor)] = plain if wide else plain.float()
    return same[id(tensor)]


class _Packing(nn.Module):
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
        and role_of(name, "forward") in (None, *_SEQUENCES)
        and value
        and all(isinstance(part, Tensor) and _is_states(part) for part in value)
    }
    if not lists:
        return callee, dict(named)
    kinds = {name: type(named[name]) for name in lists}
    given: dict[str, Any] = {}
    for name, value in named.items():
        parts = lists.get(name)
        given |= {name: value} if parts is None else dict(zip(parts, value, strict=True))
    return _Packing(callee, lists, kinds), given


_SEQUENCES = ("hidden", "query", "key", "value", "memory")


def _result(callee: Any, named: Mapping[str, Any]) -> Any:
    try:
        with repeatable(), torch.no_grad():
            return callee(**copy.deepcopy(dict(named)))
    except Exception as error:
        raise StyleError(f"{_name(callee)} raises on its own example: {headline(error)}") from error


def _hidden(named: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the hidden states: of the first tensor that has that role, or of the first."""
    floating = {
        name: value
        for name, value in named.items()
        if isinstance(value, Tensor) and value.is_floating_point() and value.dim() in _LAYOUTS
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

    hooks = [
        part.register_forward_hook(watched(place))
        for place, part in model.named_modules()
        if isinstance(part, nn.Embedding)
    ]
    try:
        _result(model, named)
    finally:
        for hook in hooks:
            hook.remove()
    if not seen:
        return None
    place, name, states = seen[0]
    rest = {other: value for other, value in named.items() if other != name}
    return _Embedded(model, place, name), rest, states


def _bindings(shown: _Example, layout: str) -> Iterator[Binding]:
    """The bindings that may describe the example, likely ones first."""
    shape = dict(zip(layout, shown.states.shape, strict=True))
    items, tokens = shape.get("B", 1), shape.get("L", 0)
    roles = dict.fromkeys(shown.hidden, "hidden")
    others = {name: value for name, value in shown.named.items() if name not in roles}
    for where in _outputs(shown, layout):
        for axes in itertools.product(*[_axes(v, items, tokens) for v in others.values()]):
            values = {
                name: Given(value, each)
                for (name, value), each in zip(others.items(), axes, strict=True)
            }
            yield Binding(
                shape="layer",
                layout=layout,
                roles={**roles, **{name: role_of(name, "forward") or "given" for name in others}},
                values=values,
                output=(where, layout),
            )


def _axes(value: Any, items: int, tokens: int) -> list[tuple[str, ...]]:
    """What the axes of the tensors of an argument may be: ``B``, ``L`` and ``.`` for others."""
    each = []
    for leaf in pytree.tree_leaves(value):
        options = []
        sizes = leaf.shape if isinstance(leaf, Tensor) else ()
        for letters in itertools.product(*[_letters(size, items, tokens) for size in sizes]):
            if letters.count("B") <= 1:
                options.append("".join(letters))
        options.sort(key=lambda axes: (-axes.count("B"), -axes.count("L"), axes.find("B")))
        each.append(options[:6])
    return [*itertools.islice(itertools.product(*each), 24)]


def _letters(size: int, items: int, tokens: int) -> str:
    return ("B" if size == items else "") + ("L" if size == tokens else "") + "."


def _outputs(shown: _Example, layout: str) -> Iterator[Any]:
    """Where tensors of the items and tokens of the hidden states are in what a call gives."""
    axes = layout.replace("L", "S")
    for where, part in parts_of(shown.result, None):
        same = [
            got == size or letter == "E"
            for got, size, letter in zip(part.shape, shown.states.shape, layout, strict=False)
        ]
        if part.dim() == len(layout) and all(same) and part.is_floating_point():
            of_tokens = part.shape[-1] == 1 and "L" in layout and sums_to_one(part, axes)
            if not of_tokens:  # which are weights
                yield where


def _differs(callee: Callee, binding: Binding, shown: _Example) -> str:
    """Why calls that are cut from the example are not its part; empty if they are."""
    axes = binding.layout
    states = shown.states.movedim(axes.index("B"), 0)[:1] if "B" in axes else shown.states[None]
    inner = axes.replace("B", "")
    order = [1 + inner.index(letter) for letter in ("L" if "L" in inner else "YX")]
    hidden = states.permute(0, *order, 1 + inner.index("E"))
    try:
        with repeatable(), torch.no_grad():
            layer = Layer(callee.at(), binding).eval()
            one, three = layer(hidden), layer(hidden.repeat(3, *[1] * (hidden.dim() - 1)))
            fewer = layer(hidden[:, :-1]) if "L" in axes else one
    except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
        return headline(error)[:160]
    if "L" in axes and hidden.shape[1] < _FEWEST:
        return f"the example has {hidden.shape[1]} tokens"
    if fewer.shape[1] != hidden.shape[1] - ("L" in axes) or not bool(fewer.isfinite().all()):
        return f"for one token fewer it gives {tuple(fewer.shape)}, or NaN"
    allowed = _CLOSE * float(one.abs().amax())
    if not bool((three - one).abs().amax() <= allowed):
        return "equal items get other outputs"
    return ""


def _with_mask(callee: Callee, binding: Binding) -> Binding:
    """The binding with a mask of padding, where an argument is one that calls can do without."""
    named = [a for a in arguments(callee.at(), "forward") or [] if a.role in ("padding", "mask")]
    kept = {
        name
        for name, value in binding.values.items()
        if value.tree is not None and not any("B" in axes for axes in value.axes)
    }
    free = [a for a in named if a.name not in kept and not a.required]
    values = {n: v for n, v in binding.values.items() if n not in {a.name for a in free}}
    bare = binding.replace(
        values=values,
        roles={n: r for n, r in binding.roles.items() if r == "hidden" or n in values},
        left=tuple(a.name for a in free),
    )
    found = masked(callee, bare, free)
    return found if found.masks else binding


def _spec(
    target: Any, callee: Callee, binding: Binding, fields: Mapping[str, Any]
) -> MechanismSpec | ScoringSpec | LayerSpec:
    given = ", ".join(name for name, value in binding.values.items() if value is not None)
    said = (f"as in the example, of its first item: {given}",) if given else ()
    known = {"name": _name(target), "sizes": lambda size: callee.width, **fields}
    return bound_spec(target, callee, binding, known, said)


def _name(target: Any) -> str:
    inner = target.model if isinstance(target, _Embedded) else target
    return str(getattr(inner, "__name__", type(inner).__name__))
