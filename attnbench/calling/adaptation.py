"""The spec of a callee: what is made, how it is called, and what calls of it show."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attnbench.calling.attention_call import Attention, Scores
from attnbench.calling.binding import Binding, Mask
from attnbench.calling.facts import facts_of, hiding, is_scaled_dot, mask_form, most_tokens
from attnbench.calling.importing import notes_of
from attnbench.calling.layer_call import Layer
from attnbench.calling.making import Recipe, recipe_of
from attnbench.calling.refusing import not_called
from attnbench.calling.roles import FORWARD
from attnbench.calling.signature import (
    NOTHING,
    Argument,
    arguments,
    forward_of,
    keywords_of,
    order_of,
    renames,
)
from attnbench.calling.styles import adapted, adapted_spec, fits, name_of
from attnbench.calling.trials import LAYOUTS, WIDTH, Callee, Calls, trials
from attnbench.errors import StyleError
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec

_MAINS = ("query", "key", "value", "memory", "hidden")


def callee_of(target: Any, recipe: Recipe | None) -> Callee:
    """What is called, of a function itself and else what the recipe makes."""
    if recipe is None:
        return Callee(lambda *_: target, WIDTH)
    base = recipe.base

    def make(query_size: int, key_size: int, value_size: int) -> Any:
        sides = {"query": query_size, "key": key_size, "value": value_size}
        return without_zeros(recipe(replace(base, width=query_size, **sides)))

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
        made = re.sub(r"\bsize\b(?!=)", "E", recipe.line)
        notes.append(f"made by {made if len(made) < 160 else f'{made[:156]}...'}")
    if recipe is not None and recipe.on_cpu:
        notes.append("what its constructor asks of a GPU was done on the CPU")
    if recipe is not None and recipe.guessed:
        notes.append(f"found by trying, as no name says it: {', '.join(recipe.guessed)}")
    return tuple(notes)


def without_zeros(module: nn.Module, biases: bool = False) -> nn.Module:
    """A module whose weights that start at zero are drawn: behind them nothing could be seen."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            is_held = is_lazy(parameter) or not parameter.requires_grad
            is_held = is_held or (name.endswith("bias") and not biases)
            if not is_held and parameter.is_floating_point() and not bool(parameter.any()):
                parameter.normal_(0.0, 0.1)
    return module


_LENGTHS = {"lengths": (Mask("BL", "lengths"), Mask("B", "lengths"))}


@dataclass(frozen=True)
class Prior:
    """What a style says of its callees before anything is tried.

    Args:
        layouts: axes of query and key.
        masks: by role, the forms of a mask that hides nothing as it should in any.
        dtypes: those that are looked at; by default those in which it can be called.
        roles: those of some arguments, whatever they are called; a call gives these arguments.
    """

    layouts: tuple[tuple[str, str], ...] = LAYOUTS
    masks: Mapping[str, tuple[Mask, ...]] = field(default_factory=lambda: _LENGTHS)
    dtypes: tuple[str, ...] = ()
    roles: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_free(self) -> bool:
        """Whether no style is meant."""
        return self is _ANY or bool(self.roles)

    def told(self, argument: Argument) -> Argument:
        """An argument with the role that is said of it."""
        role = self.roles.get(argument.name)
        return argument if role is None else replace(argument, role=role, default=NOTHING)


_ANY = Prior()


def prior_of(call: str, layouts: tuple[tuple[str, str], ...] | None = None) -> Prior:
    """What a call says of arguments: ``(state=query, outputs=memory)``.

    Args:
        call: the call.
        layouts: axes of query and key, where a style is named; then it need say nothing.

    Raises:
        StyleError: it says nothing, or names a role that there is not.
    """
    roles = dict(re.findall(r"(\w+)\s*=\s*~?(\w+)", call))
    roles = {name: role.replace("attn_mask", "mask") for name, role in roles.items()}
    for role in [*roles.values(), *([] if roles or layouts else [""])]:
        if role not in FORWARD:
            raise StyleError(
                f"--call f({call}: it should say what arguments are, such as f(state=query, "
                f"outputs=memory, seen=mask); {role!r} is none of {', '.join(FORWARD)}."
            )
    return Prior(layouts=layouts or LAYOUTS, roles=roles)


def bound(target: Any, callee: Callee, prior: Prior = _ANY) -> tuple[Callee, Binding]:
    """How a callee is called, by its arguments' names and by trial calls.

    Args:
        target: what is called, or a class of it.
        callee: how it is made.
        prior: what its style says.

    Raises:
        StyleError: no call fits, or two contradict each other.
    """
    called = target if prior.is_free else callee.at()  # which has a signature of its own if renamed
    named = arguments(forward_of(called), "forward")
    if named is None:
        raise StyleError(f"{name_of(target)}: nothing tells its arguments; wrap it in a function.")
    named = [prior.told(each) for each in named if each.name != "self"]
    if unknown := {*prior.roles} - {each.name for each in named}:
        names = ", ".join(each.name for each in named)
        raise StyleError(f"{name_of(target)} has no argument {min(unknown)!r}, but {names}.")
    raised: list[str] = []
    attempts = [_attended, _layered] if prior.is_free else [_attended]
    if {"hidden", "memory"} <= {each.role for each in named}:
        attempts.reverse()
    for attempt in attempts:
        binding = attempt(callee, named, raised, prior)
        if binding is not None:
            return _by_head(target, callee, binding), binding
    width = callee.width
    twice = Callee(callee.make, width, (width, 2 * width, 2 * width))  # of an encoder's directions
    if inspect.isclass(target) and (binding := _attended(twice, named, [], prior)) is not None:
        return twice, binding
    for width in _widths_named(raised, callee.width):  # it may be written into the code
        other = Callee(callee.make, width)
        for attempt in attempts:
            if (binding := attempt(other, named, [], prior)) is not None:
                return other, binding
    raise StyleError(not_called(target, named, raised))


def _widths_named(raised: Sequence[str], width: int) -> list[int]:
    """The numbers of features that errors name where they name that of the trials, too."""
    texts = [{*map(int, re.findall(r"\d+", text))} for text in raised]
    counts = Counter(n for numbers in texts if width in numbers for n in numbers if n > width)
    return [n for n, _ in counts.most_common(2)]


def _by_head(target: Any, callee: Callee, binding: Binding) -> Callee:
    """The callee made so that its tensors, which are of heads, have the width of a head."""
    if not inspect.isclass(target) or "H" not in binding.layout:
        return callee
    wider = Callee(lambda *sizes: callee.make(*(2 * size for size in sizes)), callee.width)
    own, other = Calls(callee, binding), Calls(wider, binding)
    return wider if own() is None or (is_scaled_dot(other) and not is_scaled_dot(own)) else callee


def _attended(
    callee: Callee, named: Sequence[Argument], raised: list[str], prior: Prior
) -> Binding | None:
    """The binding of what takes a query, and a key and value or a memory.

    What raises without any mask is given one.
    """
    masks = [a for a in named if a.role in _MASKS and not a.required]
    needed = [replace(a, default=NOTHING) if a in masks else a for a in named]
    likely = plans(named)
    if not prior.is_free:  # its first three are query, key and value, whatever they are called
        three = dict(zip((a.name for a in named), _MAINS[:3], strict=False))
        likely = [mains for mains in (*likely, three) if len(mains) == 3][:1]
    for mains, taken in itertools.product(likely, [named, needed] if masks else [named]):
        apart, mixing, errors = trials(callee, taken, mains, prior.layouts)
        raised += errors if taken is named else []
        fits = [[b for b in found if b.shape != "memory" or b.weights] for found in (apart, mixing)]
        bindings = fits[0] or fits[1]
        fitting = [each for each in bindings if each.shape != "scores"] or bindings
        # in a layout that is not its own, it may still give what sums to one over as many keys
        fitting = [each for each in fitting if each.output is not None] or fitting
        other = [each for each in fitting[1:] if not _agree(callee, each, fitting[0])]
        if other:
            first, second = (f"{each.layout}, {each.memory}" for each in (fitting[0], other[0]))
            raise StyleError(
                f"it can be called with query and key as {first} and as {second}, and gives other "
                "outputs: say which by an example of a call, or by --as sdpa, which is "
                "(B, H, L, E), or --as flash, which is (B, L, H, E)."
            )
        if fitting:
            return _reading_most(callee, fitting, named, prior)
    return None


def _reading_most(
    callee: Callee, fitting: Sequence[Binding], named: Sequence[Argument], prior: Prior
) -> Binding:
    """The first binding in which all masks are read, or else the fewest are not."""
    best: Binding | None = None
    for binding in [each for each in fitting if each.one_query == fitting[0].one_query]:
        found = masked(callee, binding, named, prior)
        if best is None or len(found.unread) < len(best.unread):
            best = found
        if not best.unread:
            break
    assert best is not None
    return best


def _agree(callee: Callee, one: Binding, two: Binding) -> bool:
    """Whether two ways to call give the same outputs, or the second takes more queries at once."""
    if one.one_query and not two.one_query and one.memory == two.memory.replace("H", ""):
        return True
    plain = Calls(callee, one.replace(layout="BLE")).tensors()
    one_found, two_found = (Calls(callee, binding).both(plain) for binding in (one, two))
    if one_found is None or two_found is None:
        return one_found is None
    return all(
        a is None or b is None or (a.shape == b.shape and torch.allclose(a, b, 1e-4, 1e-4))
        for a, b in zip(one_found, two_found, strict=True)
    )


def _layered(
    callee: Callee, named: Sequence[Argument], raised: list[str], prior: Prior
) -> Binding | None:
    """The binding of what takes hidden states, and perhaps a second sequence."""
    for mains in layer_plans(named):
        apart, mixing, errors = trials(callee, named, mains)
        raised += errors
        for binding in (apart or mixing)[:1]:
            return masked(callee, _without_memory(callee, binding, named), named)
    return None


def _without_memory(callee: Callee, binding: Binding, named: Sequence[Argument]) -> Binding:
    """The binding without a second sequence that changes no output and need not be given."""
    name = next((name for name, role in binding.roles.items() if role == "memory"), "")
    if not name or any(a.required for a in named if a.name == name):
        return binding
    calls = Calls(callee, binding)
    hidden, memory = calls.tensors()
    plain, moved = calls([hidden, memory]), calls([hidden, -1.5 * memory])
    if plain is None or moved is None or not torch.equal(plain, moved):
        return binding
    roles = {each: role for each, role in binding.roles.items() if each != name}
    return binding.replace(roles=roles, memory="", idle=(name,))


def layer_plans(arguments: Sequence[Argument]) -> list[dict[str, str]]:
    """Which arguments may be hidden states and a second sequence, likely ones first."""
    required = [a for a in arguments if a.required]
    if not required:
        return []
    hidden = next((a for a in required if a.role == "hidden"), required[0])
    others = [a for a in arguments if a is not hidden]
    unknown = [a for a in others if a.name == "y" or (a.required and a.role is None)]
    memories = [a for a in others if a.role == "memory"] or unknown[:1]
    own = {hidden.name: "hidden"}
    return [*({**own, each.name: "memory"} for each in memories), own]


def plans(arguments: Sequence[Argument]) -> list[dict[str, str]]:
    """Which arguments may be query, key, value or a memory, likely ones first."""
    required = [a for a in arguments if a.required]
    named = {a.name: a.role for a in required if a.role in _MAINS}
    roles = [*named.values()]
    found = []
    if {"query", "key", "value"} <= {*roles} and len(roles) == 3:
        found.append({name: str(role) for name, role in named.items()})
    elif len(named) == 2:
        first, second = named
        pair = (roles[0], roles[1])
        if pair in (
            ("memory", "query"),
            ("memory", "hidden"),
            ("key", "query"),
            ("value", "query"),
        ):
            found.append({first: "memory", second: "query"})
        else:
            found.append({first: "query", second: "memory"})
    elif len(required) == 2 and len(named) == 1 and {"memory", "query"} & {*roles}:
        role = {"memory": "query", "query": "memory"}[str(roles[0])]
        found.append({a.name: str(named.get(a.name, role)) for a in required})
    elif len(required) == 3 and not any(a.role for a in required):
        found.append(dict(zip((a.name for a in required), ("query", "key", "value"), strict=True)))
    elif len(required) == 2 and not any(a.role for a in required):
        found.append(dict(zip((a.name for a in required), ("query", "memory"), strict=True)))
    return found


_MASKS = ("mask", "memory_mask", "padding", "memory_padding", "lengths")


def masked(
    callee: Callee, binding: Binding, arguments: Sequence[Argument], prior: Prior = _ANY
) -> Binding:
    """A binding with the forms of its masks; of a layer with the first that says padding."""
    is_layer = binding.shape == "layer"
    masks: dict[str, Mask] = {}
    roles, unread = dict(binding.roles), []
    kinds = ("padding", "mask") if is_layer else _MASKS
    asked = [argument for argument in arguments if argument.role in kinds]
    for argument in sorted(asked, key=lambda a: kinds.index(str(a.role))) if is_layer else asked:
        if is_layer and masks:
            break
        form = mask_form(callee, binding, argument.name, argument.role == "lengths")
        form = form or _declared(callee, binding, argument, prior)
        if form is None:
            unread.append(argument.name)
        else:
            masks[argument.name] = form
            roles[argument.name] = argument.role or ""
    left = tuple(name for name in binding.left if name not in masks)
    return binding.replace(masks=masks, roles=roles, left=left, unread=tuple(unread))


def _declared(callee: Callee, binding: Binding, argument: Argument, prior: Prior) -> Mask | None:
    """The form that a style says of a mask, if calls in it give an output."""
    for form in prior.masks.get(str(argument.role), ()) if binding.shape == "attention" else ():
        roles = {**binding.roles, argument.name: str(argument.role)}
        calls = Calls(callee, binding.replace(masks={argument.name: form}, roles=roles))
        if calls(**(hiding(calls, 2) or {})) is not None:
            return form
    return None


def spec_of(
    target: Any, callee: Callee | None = None, prior: Prior = _ANY, **fields: Any
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
    callee, binding = bound(target, callee or callee_of(target, recipe), prior)
    style = _style_of(target, binding)
    if style == "textbook":
        return _of_textbook(target, recipe, callee, binding, fields)
    if style is not None:
        known_style: MechanismSpec = adapted(target, style, **fields)
        return known_style
    callee, fields = _as_it_drops(target, callee, binding, recipe, fields)
    return bound_spec(target, callee, binding, fields, origin_of(target, recipe))


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
    callee, binding = bound(make, callee_of(make, recipe), _TEXTBOOK)
    return _of_textbook(make, recipe, callee, binding, fields)


def _of_textbook(
    target: Any,
    recipe: Recipe | None,
    callee: Callee,
    binding: Binding,
    fields: Mapping[str, Any],
) -> MechanismSpec:
    """The spec of a callee that is a textbook's, in the dtypes that textbooks have in mind."""
    callee, fields = _as_it_drops(target, callee, binding, recipe, fields)
    origin = (f"in {' and '.join(_TEXTBOOK.dtypes)}", *origin_of(target, recipe))
    known = {"dtypes": _TEXTBOOK.dtypes, **fields}
    spec: Any = bound_spec(target, callee, binding, known, origin, style="textbook")
    return spec  # type: ignore[no-any-return]


_TEXTBOOK = Prior(
    layouts=(("BLE", "BSE"),),
    masks={
        **_LENGTHS,
        "mask": tuple(Mask(axes, "shows") for axes in ("BLS", "B1LS", "LS")),
    },
    dtypes=("float32", "float64"),  # its -1e6 is -inf in float16, where undivided products overflow
)


def _as_it_drops(
    target: Any,
    callee: Callee,
    binding: Binding,
    recipe: Recipe | None,
    fields: Mapping[str, Any],
) -> tuple[Callee, dict[str, Any]]:
    """The callee made with dropout if it drops in evaluation; else fields that say that none is."""
    given = arguments(target, "constructor") if inspect.isclass(target) else None
    drops = any(each.role == "dropout" for each in given or ())
    if recipe is None or not drops or binding.shape in ("layer", "scores"):
        return callee, {**fields}
    dropping = callee_of(target, replace(recipe, base=replace(recipe.base, dropout=0.5)))
    is_random = Calls(dropping, binding).is_random()
    return (dropping, {**fields}) if is_random else (callee, {"idle_dropout": True, **fields})


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
    kind = {"scores": Scores, "layer": Layer}.get(binding.shape, Attention)
    name = name_of(target)

    def make(*sizes: int) -> nn.Module:
        module = kind(callee.made(*(*sizes, sizes[-1], sizes[-1])[:3]), binding)
        if any(is_lazy(parameter) for parameter in module.parameters()):
            with torch.no_grad(), contextlib.suppress(Exception):  # the next call raises it again
                module(*(torch.zeros(1, 5, size) for size in sizes))
        return module

    make.__qualname__ = name
    is_even = len({*callee.sides}) == 1
    if binding.shape == "scores":
        scores = {"name": name, "make": lambda q, k: make(q, k), "equal_sizes": is_even}
        if not is_even:
            scores["sizes"] = _legal_sizes(
                unit_of(Calls(callee, binding)), True, True, binding, callee, 0
            )
        given = {key: value for key, value in fields.items() if key != "notes"}
        return ScoringSpec(**{**scores, **given})
    if "return_weights" in fields.get("accepts", ()) and binding.weights is None:
        raise StyleError(
            f'{name}: accepts names "return_weights", but no weights (B, L, S) are found '
            "in (output, weights) or in attention_weights: hand some back, or leave it out."
        )
    facts, calls = facts_of(callee, binding), Calls(callee, binding)
    notes = (binding.sentence(), *facts.notes, *binding.rest(), *origin)
    if not is_even:
        told = f"keys have {callee.sides[1]} features where queries have {callee.sides[0]}"
        notes = (notes[0], told, *notes[1:])
    unit = unit_of(calls)
    if binding.shape == "layer":
        layer = {
            "name": name,
            "make": lambda size: make(size),
            "sizes": lambda size: -(-size // unit) * unit if unit else callee.width,
            "grid": "Y" in binding.layout,
            "tokens": binding.tokens or None,
            "conventions": facts.conventions,
        }
        said = (*fields.get("notes", ()), *notes)
        return LayerSpec(**{**layer, **facts.fields, **fields, "notes": said})
    equal, wide = (
        not is_even or calls(calls.tensors(sizes=sizes)) is None
        for sizes in ((unit * 3, unit * 2, unit * 3), (unit * 3, unit * 3, unit * 2))
    )
    most = most_tokens(calls)
    same_value = wide or binding.shape == "memory"
    legal = _legal_sizes(unit, equal, same_value, binding, callee, most)
    if most:
        limit = f"not tried with more than {most} queries or keys, where it raises {calls.raised}"
        notes = (*notes, limit)
    known = {
        "sizes": legal,
        "equal_sizes": equal and is_even,
        **facts.fields,
        "make": make,
        "conventions": facts.conventions,
    }
    return adapted_spec(style, target, known, fields, notes)


def _style_of(target: Any, binding: Binding) -> str | None:
    """A style whose arguments and layout these are, which knows what its keywords mean."""
    style = {"BHLE": "sdpa", "BLHE": "flash"}.get(binding.layout)
    says = {mask.says for mask in binding.masks.values()}
    if (binding.shape, binding.layout) == ("attention", "BLE") and "lengths" in says:
        return "textbook"
    if inspect.isclass(target) or style is None or not says <= {"shows", "added"}:
        return None
    return style if fits(target, style) is None else None


def unit_of(calls: Calls) -> int:
    """The number that a legal width is a multiple of; 0 where its own is the only one."""

    def answers(width: int) -> bool:
        tensors = calls.tensors(sizes=calls.callee.scaled(width))
        return _is_telling(calls(tensors), calls([t.roll(1, 0) for t in tensors]))

    units = (1, 2, 4, 8, 16, 32, 64, 128)
    return next((unit for unit in units if answers(unit) and answers(3 * unit)), 0)


def _is_telling(output: Tensor | None, other: Tensor | None) -> bool:
    """Whether every row of an output differs from that of other inputs.

    A norm over one feature gives the same for all, and one over two a sign.
    """
    if output is None or other is None:
        return False
    changes = (output - other).abs().amax(-1)
    return bool((changes > _SHOWN * output.abs().amax()).all())


_SHOWN = 1e-5


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
