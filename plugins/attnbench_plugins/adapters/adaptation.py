"""The spec of a callee: what is made, how it is called, and what calls of it show."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from attnbench import LayerSpec, MechanismSpec, ScoringSpec
from attnbench.errors import StyleError
from attnbench.styles import (
    LAYOUTS,
    TENSORS,
    FoundScoring,
    adapted,
    adapted_spec,
    arguments,
    call_arguments,
    name_of,
    notes_of,
    renames,
    role_of,
)
from attnbench_plugins.adapters.binding import Binding, Given
from attnbench_plugins.adapters.calls.attention_call import Attention
from attnbench_plugins.adapters.calls.layer_call import Layer
from attnbench_plugins.adapters.making.groups import has_groups
from attnbench_plugins.adapters.making.recipes import Recipe, recipe_of, woken
from attnbench_plugins.adapters.trials.facts import dtypes_of, facts_of, is_scaled_dot, most_tokens
from attnbench_plugins.adapters.trials.fitting import FREE, Prior, bound, without_copies
from attnbench_plugins.adapters.trials.small_calls import WIDTH, Callee, Calls
from attnbench_plugins.adapters.usual_arguments import fits, fitted


def callee_of(target: Any, recipe: Recipe | None) -> Callee:
    """What is called, of a function itself and else what the recipe makes."""
    if recipe is None:
        return Callee(lambda *_: target, WIDTH)
    base = recipe.base

    def make(query_size: int, key_size: int, value_size: int) -> Any:
        sides = {"query": query_size, "key": key_size, "value": value_size}
        return woken(recipe(replace(base, width=query_size, **sides)))

    return Callee(make, base.width)


def _split(target: Any) -> tuple[Any, Recipe | None]:
    """A callee, and how it is made unless it is a function."""
    if isinstance(target, Recipe):
        return target.target, target
    is_made = isinstance(target, nn.Module) or inspect.isclass(target)
    return target, recipe_of(target) if is_made else None


def origin_of(target: Any, recipe: Recipe | None) -> tuple[str, ...]:
    """How a callee was imported and made, for the lines about it."""
    module = sys.modules.get(getattr(target, "__module__", ""))
    notes = [] if module is None else [*notes_of(module)]
    if recipe is not None and recipe.line:
        notes.append(f"made by {_line_of(recipe)}")
    if recipe is not None and recipe.sleeps:
        notes.append("weights that start near zero are larger")
    if recipe is not None and has_groups():
        notes.append("the parallel groups that it asks for are of one process")
    if recipe is not None and recipe.on_cpu:
        notes.append("what its constructor asks of a GPU was done on the CPU")
    if recipe is not None and recipe.guessed:
        notes.append(f"found by trying, as no name says it: {', '.join(recipe.guessed)}")
    return tuple(notes)


def _line_of(recipe: Recipe) -> str:
    """The call of a constructor, for E features."""
    made = re.sub(r"\bsize\b(?!=)", "E", recipe.line)
    return made if len(made) < 160 else f"{made[:156]}..."


def _bound(
    target: Any, recipe: Recipe | None, callee: Callee, prior: Prior
) -> tuple[Callee, Binding]:
    """The callee and how it is called; a refusal says how it was made, which may be wrong."""
    try:
        return bound(target, callee, prior)
    except StyleError as error:
        if recipe is None or not recipe.line:
            raise
        said, _, advice = str(error).partition("\n")
        made = f"It was made by {_line_of(recipe)}; --make says it otherwise."
        raise StyleError(f"{said}\n{made}\n{advice}".rstrip()) from error


def spec_of(
    target: Any, callee: Callee | None = None, prior: Prior = FREE, **fields: Any
) -> MechanismSpec | ScoringSpec | LayerSpec:
    """The spec of a callee that no style names.

    Args:
        target: what is called, a class of it, or a recipe.
        callee: how it is made; by its recipe if it is not given.
        prior: what is said of its arguments.
        fields: further fields of the spec.

    Raises:
        StyleError: it cannot be made, no call fits, or two contradict each other.
    """
    target, recipe = _split(target)
    callee, binding = _bound(target, recipe, callee or callee_of(target, recipe), prior)
    style = _style_of(target, callee, binding)
    if style in LAYOUTS:
        dtypes, said = dtypes_of(Calls(callee, binding))
        found = {"dtypes": dtypes, "notes": (said,)} if said else {}
        known_style: MechanismSpec = adapted(target, style, **{**found, **fields})
        return known_style
    return _found_spec(target, recipe, callee, binding, fields, style or "spec_of")


@renames
def textbook(make: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a class, module or function as textbooks have it.

    It is called with query, key and value ``(B, L, E)``, under any of their usual names, and with
    the lengths ``(B,)`` or ``(B, L)`` of the keys, or a mask in which True may attend, where it
    takes one. The sizes that a constructor asks for by their usual names (``key_size``,
    ``num_hiddens``, ``num_heads``, ``dropout`` ...) are filled in. Small calls show what it does by
    convention, and the report's first line says it.

    Args:
        make: a class, a function that attends, or a module.
        fields: fields of the spec, which override what is found out; conventions and exemptions are
            added.

    Raises:
        StyleError: no such call gives an output, or the constructor asks for something unknown.
    """
    is_made = inspect.isclass(make) or isinstance(make, nn.Module) or not callable(make)
    taken = [] if is_made else call_arguments(make) or []
    takes_tensors = {each.role for each in taken[:3]} == {"query", "key", "value"}
    recipe = None if takes_tensors else recipe_of(make)
    callee, binding = _bound(make, recipe, callee_of(make, recipe), _TEXTBOOK)
    spec: Any = _found_spec(make, recipe, callee, binding, fields, "textbook")
    return spec  # type: ignore[no-any-return]


_TEXTBOOK = Prior(layouts=(("BLE", "BSE"),), style=True)
_DTYPES = ("float32", "float64")
"""Those that textbooks have in mind: their -1e6 is -inf in float16."""


def _found_spec(
    target: Any,
    recipe: Recipe | None,
    callee: Callee,
    binding: Binding,
    fields: Mapping[str, Any],
    style: str,
) -> MechanismSpec | ScoringSpec | LayerSpec:
    """The spec of a callee, made with dropout if it drops in evaluation; a textbook's in two."""
    known = {**fields}
    given = arguments(target, "constructor") if inspect.isclass(target) else None
    shares = [each.name for each in given or () if each.role == "dropout"]
    if recipe is not None and shares and binding.shape != "scores":
        line = re.sub(rf"\b({'|'.join(shares)})=0\.0", r"\1=0.5", recipe.line)
        dropping = replace(recipe, base=replace(recipe.base, dropout=0.5), line=line)
        dropped = callee_of(target, dropping)
        if Calls(dropped, binding).is_random():
            callee, recipe = dropped, dropping
        elif binding.shape != "layer":
            known = {"idle_dropout": True, **known}
    origin = origin_of(target, recipe)
    if style == "textbook":
        origin, known = (f"in {' and '.join(_DTYPES)}", *origin), {"dtypes": _DTYPES, **known}
    return bound_spec(target, callee, binding, known, origin, style)


def making(callee: Callee, binding: Binding, name: str) -> Callable[..., nn.Module]:
    """What makes a bound callee of these sizes."""
    kind = Layer if binding.shape == "layer" else Attention

    def make(*sizes: int) -> nn.Module:
        module = kind(callee.made(*(*sizes, sizes[-1], sizes[-1])[:3]), binding)
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad(), contextlib.suppress(Exception):  # the next call raises it again
                module(*(torch.zeros(1, 5, size) for size in sizes))
        return module

    make.__qualname__ = name
    return make


def bound_spec(
    target: Any,
    callee: Callee,
    binding: Binding,
    fields: Mapping[str, Any],
    origin: tuple[str, ...] = (),
    style: str = "spec_of",
) -> MechanismSpec | ScoringSpec | LayerSpec:
    """The spec of a bound callee, with what calls of it show.

    Args:
        target: what is called, or a class of it.
        callee, binding: how it is made and called.
        fields: further fields of the spec.
        origin: how it was imported and made.
        style: what says how it is called.
    """
    name, binding = name_of(target), without_copies(callee, binding)
    is_even = len({*callee.sides}) == 1
    if binding.shape == "layer" and not is_even:
        binding = binding.replace(wide=callee.sides[1])
    make = making(callee, binding, name)
    if binding.shape == "scores":
        scores = {"name": name, "make": lambda q, k: make(q, k), "equal_sizes": is_even}
        unit = unit_of(Calls(callee, binding))
        if not is_even or unit != 1:
            scores["sizes"] = _legal_sizes(unit, True, True, binding, callee, 0)
        said = (*fields.get("notes", ()), binding.sentence(), *binding.rest(), *origin)
        return FoundScoring(**{**scores, **fields, "notes": said})
    if "return_weights" in fields.get("accepts", ()) and binding.weights is None:
        raise StyleError(
            f'{name}: accepts names "return_weights", but no weights (B, L, S) are found '
            "in (output, weights) or in attention_weights: hand some back, or leave it out."
        )
    facts, calls = facts_of(callee, binding), Calls(callee, binding)
    notes = (binding.sentence(), *facts.notes, *binding.rest(), *origin)
    if not is_even:
        query, key, value = callee.sides
        wide = f"keys have {key}" if key != query else f"values have {value}"
        told = f"{wide} features where queries have {query}"
        notes = (notes[0], told, *notes[1:])
    unit = unit_of(calls) if is_even or binding.shape != "layer" else 0
    if binding.shape == "layer":
        layer = {
            "name": name,
            "make": lambda size: make(size),
            "sizes": lambda size: -(-size // unit) * unit if unit else callee.width,
            "grid": "Y" in binding.layout,
            "tokens": binding.tokens or None,
            "conventions": facts.conventions,
            "exempt": _exempt(callee, binding),
        }
        said = (*fields.get("notes", ()), *notes)
        return LayerSpec(**{**layer, **facts.fields, **fields, "notes": said})
    sizes, limits = _sizes_of(calls, unit)
    known = {**sizes, **facts.fields, "make": make, "conventions": facts.conventions}
    exempt: dict[str, str] = {}
    if not binding.pools:
        apart = "its values are its keys, and are not given apart"
        exempt["every_attendable_key_matters"] = apart
    unseen = [f"{name}, which was left at its default" for name in binding.left]
    unseen += [f"what else it gives, {shape}" for shape in facts.others]
    if unseen and (names := calls.unreached()):
        doubt = f"{names[0]} may belong to {' or '.join(unseen)}"
        exempt["gradients_reach_every_parameter"] = doubt
    return adapted_spec(style, target, {**known, "exempt": exempt}, fields, (*notes, *limits))


def _exempt(callee: Callee, binding: Binding) -> dict[str, str]:
    """The properties that a layer need not have, by how it is called, and why."""
    held = [n for n, value in binding.values.items() if isinstance(value, Given)]
    copied = {"copies_agree": "a function is not copied"}
    one = {"outputs_depend_on_their_token": "a query with one key left changes no output"}
    is_held = any(role_of(name, "forward") in TENSORS for name in held)
    seen = Calls(callee, binding).reach() if is_held else None
    counts = seen is not None and bool(seen.diagonal(dim1=-2, dim2=-1).any())
    return (one if counts else {}) | ({} if isinstance(callee.at(), nn.Module) else copied)


def _sizes_of(calls: Calls, unit: int) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The fields of a mechanism's spec that say which sizes it takes, and what limits it has."""
    callee, binding = calls.callee, calls.binding
    is_even = len({*callee.sides}) == 1
    equal, wide = (
        not is_even or calls(calls.tensors(sizes=sizes)) is None
        for sizes in ((unit * 3, unit * 2, unit * 3), (unit * 3, unit * 3, unit * 2))
    )
    most = most_tokens(calls)
    error = calls.raised.removeprefix("RefusalError: ")
    told = f"not tried with more than {most} queries or keys: {error}"
    same_value = wide or binding.shape == "memory"
    legal = _legal_sizes(unit, equal, same_value, binding, callee, most)
    return {"sizes": legal, "equal_sizes": equal and is_even}, (told,) if most else ()


def _style_of(target: Any, callee: Callee, binding: Binding) -> str | None:
    """A style whose arguments and layout these are, which knows what its keywords mean.

    A style leaves out masks that it does not know, and holds its callee to the softmax.
    """
    style = {"BHLE": "sdpa", "BLHE": "flash"}.get(binding.layout)
    says = {mask.says for mask in binding.masks.values()}
    if (binding.shape, binding.layout) == ("attention", "BLE") and "lengths" in says:
        return "textbook"
    if inspect.isclass(target) or style is None or not says <= {"shows", "added"}:
        return None
    if fits(target, style) is not None:
        return None
    named = fitted(target, style).named
    if {*binding.masks} - {named.get("attn_mask")}:
        return None
    return style if named or is_scaled_dot(Calls(callee, binding)) else None


def unit_of(calls: Calls) -> int:
    """The number that a legal width is a multiple of; 0 where its own is the only one."""

    def answers(width: int) -> bool:
        tensors = calls.tensors(sizes=calls.callee.scaled(width))
        output, other = calls(tensors), calls([t.roll(1, 0) for t in tensors])
        if output is None or other is None or not all(tensor.numel() for tensor in tensors):
            return False
        made: Any = calls.callee.at(*calls.callee.scaled(width))
        held = made.parameters() if isinstance(made, nn.Module) else ()
        if not all(is_lazy(each) or each.numel() for each in held):  # a head without features
            return False
        # a norm over one feature gives the same for all, and one over two a sign
        return bool(((output - other).abs().amax(-1) > _SHOWN * output.abs().amax()).all())

    units = (1, 2, 4, 8, 16, 32, 64, 128)
    return next((unit for unit in units if all(map(answers, (unit, 3 * unit, 5 * unit)))), 0)


_SHOWN = 1e-5
"""The least change of a row, in proportion, that shows that it depends on its inputs."""


_MOST_NUMBERS = 2**22
"""Most numbers of expanded keys, where each query is called as an item of its own."""


def _legal_sizes(
    unit: int, equal: bool, same_value: bool, binding: Binding, callee: Callee, most: int
) -> Callable[[Any], Any]:
    def legal(sizes: Any) -> Any:
        query, key, value = (
            -(-size // unit) * unit if unit else side
            for size, side in zip(
                (sizes.query_size, sizes.key_size, sizes.value_size), callee.sides, strict=True
            )
        )
        own = callee.scaled(query)
        key, value = own[1] if equal else key, own[2] if same_value else value
        queries, keys = (min(n, most or n) for n in (sizes.q_len, sizes.kv_len))
        if binding.one_query:
            queries = min(queries, max(8, _MOST_NUMBERS // (keys * max(key, value))))
        found = sizes.replace(query_size=query, key_size=key, value_size=value)
        return found.replace(q_len=queries, kv_len=queries if binding.square else keys)

    return legal
