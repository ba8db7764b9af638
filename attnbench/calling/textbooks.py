"""The style of what textbooks teach: ``forward(queries, keys, values, valid_lens)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from attnbench.calling.adaptation import bound_spec, callee_of, masked, origin_of
from attnbench.calling.adapted import name_of
from attnbench.calling.binding import Binding, Mask
from attnbench.calling.facts import hiding
from attnbench.calling.making import Recipe, recipe_of
from attnbench.calling.refusing import not_called
from attnbench.calling.signature import (
    FIRST,
    NOTHING,
    TEXTBOOK_LENGTHS,
    Argument,
    arguments,
    keywords_of,
    order_of,
    renames,
)
from attnbench.calling.trials import Callee, Calls, trials
from attnbench.errors import StyleError
from attnbench.specs import MechanismSpec

_DTYPES = ("float32", "float64")
"""A textbook's -1e6 is -inf in float16, and it divides a product that overflows there."""


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
    keywords = keywords_of(make) if callable(make) and not inspect.isclass(make) else None
    takes_tensors = keywords is not None and bool(order_of(keywords.names))
    recipe = None if takes_tensors and not isinstance(make, nn.Module) else recipe_of(make)
    callee = callee_of(make, recipe)
    binding = _bound(make, callee)
    callee, idle = _as_it_drops(make, callee, binding, recipe)
    known: dict[str, Any] = {"dtypes": _DTYPES, "idle_dropout": idle, **fields}
    notes = ("in float32 and float64", *origin_of(make, recipe))
    spec: Any = bound_spec(make, callee, binding, known, notes, style="textbook")
    _refuse_missing_weights(make, spec, Calls(callee, binding))
    return spec  # type: ignore[no-any-return]


def _bound(make: Any, callee: Callee) -> Binding:
    """How it is called: its query, key and value by name or place, its masks as they hide keys."""
    found = arguments(callee.at(), "forward")
    if found is None or len(found) < 3:
        raise StyleError(
            f"{name_of(make)} cannot be called as textbook: nothing tells its arguments; wrap it "
            "in a function that names them."
        )
    order = order_of([each.name for each in found]) or [0, 1, 2]
    mains = {each.name: [*FIRST][place] for each, place in zip(found, order, strict=False)}
    rest = [replace(a, role="lengths" if a.name in TEXTBOOK_LENGTHS else a.role) for a in found]
    masks = [a.name for a in rest if a.role in ("mask", "lengths")]
    needed = [replace(a, default=NOTHING) if a.name in masks else a for a in rest]
    raised: list[str] = []
    for taken in (rest, needed):
        apart, mixing, errors = trials(callee, taken, mains, [("BLE", "BSE")])
        raised += errors
        for binding in (apart or mixing)[:1]:
            return _with_declared(callee, masked(callee, binding, rest), rest)
    raise StyleError(not_called(make, found, raised))


def _with_declared(callee: Callee, binding: Binding, taken: Sequence[Argument]) -> Binding:
    """A binding in which a mask that hides nothing as it should is called as textbooks have it."""
    for name in binding.unread:
        role = next(a.role for a in taken if a.name == name)
        forms = [Mask("BL", "lengths"), Mask("B", "lengths")]
        if role != "lengths":
            forms = [Mask(axes, "shows") for axes in ("BLS", "B1LS", "LS")]
        for form in forms:
            masks = {**binding.masks, name: form}
            other = binding.replace(masks=masks, roles={**binding.roles, name: str(role)})
            calls = Calls(callee, other)
            if calls(**(hiding(calls, 2) or {})) is not None:
                binding = other
                break
    unread, left = (
        tuple(name for name in names if name not in binding.masks)
        for names in (binding.unread, binding.left)
    )
    return binding.replace(unread=unread, left=left)


def _as_it_drops(
    make: Any, callee: Callee, binding: Binding, recipe: Recipe | None
) -> tuple[Callee, bool]:
    """The callee made with dropout if it drops in evaluation; and whether none is looked at."""
    given = arguments(make, "constructor") if inspect.isclass(make) else None
    if recipe is None or not any(each.role == "dropout" for each in given or ()):
        return callee, False
    dropping = callee_of(make, replace(recipe, base=replace(recipe.base, dropout=0.5)))
    is_random = Calls(dropping, binding).is_random()
    return (dropping, False) if is_random else (callee, True)


def _refuse_missing_weights(make: Any, spec: MechanismSpec, calls: Calls) -> None:
    """Raise if weights are declared that no call gives."""
    if "return_weights" in spec.accepts and calls.binding.weights is None:
        raise StyleError(
            f'{name_of(make)}: accepts names "return_weights", but no weights (B, L, S) are found '
            "in (output, weights) or in attention_weights: hand some back, or leave it out."
        )
