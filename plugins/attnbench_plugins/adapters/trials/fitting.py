"""Which call fits a callee: plans by names of arguments, trials, and the forms of its masks."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from attnbench.errors import StyleError
from attnbench.styles import (
    FORWARD,
    NOTHING,
    TENSORS,
    Argument,
    call_arguments,
    call_written,
    forward_of,
    name_of,
)
from attnbench_plugins.adapters.binding import Binding
from attnbench_plugins.adapters.making.widths import tree_of
from attnbench_plugins.adapters.refusing import Raised, not_called
from attnbench_plugins.adapters.trials.facts import is_scaled_dot
from attnbench_plugins.adapters.trials.mask_trials import MASKS, masked
from attnbench_plugins.adapters.trials.plans import layer_plans, plans
from attnbench_plugins.adapters.trials.small_calls import Callee, Calls, close
from attnbench_plugins.adapters.trials.trial_layouts import LAYOUTS, layer_trials, trials


@dataclass(frozen=True)
class Prior:
    """What a style says of its callees before anything is tried.

    Args:
        layouts: axes of query and key.
        roles: those of some arguments, whatever they are called; a call gives these arguments.
        given: arguments of no known role, as an example gives them, or a constant.
        style: whether it is a style whose first three arguments are query, key and value.
    """

    layouts: tuple[tuple[str, str], ...] = LAYOUTS
    roles: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Argument] = field(default_factory=dict)
    style: bool = False

    @property
    def is_free(self) -> bool:
        """Whether no style is meant."""
        return not self.style or bool(self.roles or self.given)

    def told(self, argument: Argument) -> Argument:
        """An argument with the role that is said of it."""
        if argument.name in self.given:
            return self.given[argument.name]
        role = self.roles.get(argument.name)
        return argument if role is None else replace(argument, role=role, default=NOTHING)


FREE = Prior()
"""Nothing is said: names and calls tell all."""


def prior_of(call: str, layouts: tuple[tuple[str, str], ...] | None = None) -> Prior:
    """What a call says of arguments: ``(state=query, outputs=memory, step=0)``.

    Args:
        call: the call.
        layouts: axes of query and key, where a style is named; then it need say nothing.

    Raises:
        StyleError: it says nothing, or names a role that there is not.
    """
    said = call_written(f"f({call}")
    given = {
        name: Argument(name, None, given=(value,))
        for name, text in said.items()
        if (value := _constant(text)) is not NOTHING
    }
    own = {name: text.removeprefix("~") for name, text in said.items() if name not in given}
    roles = {name: role.replace("attn_mask", "mask") for name, role in own.items()}
    for role in [*roles.values(), *([] if said or layouts else [""])]:
        if role not in FORWARD:
            raise StyleError(
                f"--call f({call}: it should say what arguments are, such as f(state=query, "
                f"outputs=memory, seen=mask); {role!r} is none of {', '.join(FORWARD)}."
            )
    return Prior(layouts or LAYOUTS, roles=roles, given=given, style=layouts is not None)


def _constant(text: str) -> Any:
    """A constant of Python, such as 0, None or 'add'; ``NOTHING`` for a name."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return NOTHING


def bound(target: Any, callee: Callee, prior: Prior = FREE) -> tuple[Callee, Binding]:
    """How a callee is called, by its arguments' names and by trial calls.

    Args:
        target: what is called, or a class of it.
        callee: how it is made.
        prior: what its style says.

    Raises:
        StyleError: no call fits, or two contradict each other.
    """
    called = target if prior.is_free else callee.at()  # which has a signature of its own if renamed
    named = call_arguments(called)
    if named is None:
        raise StyleError(f"{name_of(target)}: nothing tells its arguments; wrap it in a function.")
    named = [prior.told(each) for each in _without_unread(called, named)]
    if unknown := {*prior.roles, *prior.given} - {each.name for each in named}:
        names = ", ".join(each.name for each in named)
        raise StyleError(f"{name_of(target)} has no argument {min(unknown)!r}, but {names}.")
    raised: list[Raised] = []
    if (binding := _first(callee, named, raised, prior)) is not None:
        _check_said(target, binding, prior)
        return _by_head(target, callee, binding), binding
    width = callee.width
    twice = Callee(callee.make, width, (width, 2 * width, 2 * width))  # of an encoder's directions
    twice.spent = callee.spent
    if inspect.isclass(target) and (binding := _attended(twice, named, [], prior)) is not None:
        return twice, binding
    for width in _widths_named(raised, callee.width):  # it may be written into the code
        other = Callee(callee.make, width)
        other.spent = callee.spent
        if other.is_made() and (binding := _first(other, named, [], prior)) is not None:
            return other, binding
    raise StyleError(not_called(target, named, raised, said=bool(prior.roles or prior.given)))


def _without_unread(called: Any, named: Sequence[Argument]) -> list[Argument]:
    """The arguments; a tensor that a call needs and its code never reads is ``None``."""
    names = {
        node.id for node in ast.walk(tree_of(forward_of(called))) if isinstance(node, ast.Name)
    }
    return [
        replace(each, role=None, given=(None,))
        if names and each.required and each.role in TENSORS and each.name not in names
        else each
        for each in named
    ]


def _first(
    callee: Callee, named: Sequence[Argument], raised: list[Raised], prior: Prior
) -> Binding | None:
    """The first binding that fits; one whose memory changes no output only where no other does."""
    idle: Binding | None = None
    for binding in filter(None, _bindings(callee, named, raised, prior)):
        may_be_idle = binding.shape in ("layer", "attention") and binding.memory
        if not may_be_idle or not _is_idle(callee, binding):
            return binding
        idle = idle or binding
    return idle


def _bindings(
    callee: Callee, named: Sequence[Argument], raised: list[Raised], prior: Prior
) -> Iterator[Binding | None]:
    """Yield the bindings that may fit; a layer's last where another reads more masks of it."""
    layer_first = prior.is_free and {"hidden", "memory"} <= {each.role for each in named}
    layered = _layered(callee, named, raised) if layer_first else None
    unread = _unread(callee, layered, named)
    if not unread:
        yield layered
    attended = _attended(callee, named, raised, prior)
    if not unread or (attended and len(attended.unread) < len(unread)):
        yield attended
    if prior.is_free and not layer_first:
        layered = _layered(callee, named, raised)
        unread = _unread(callee, layered, named)
        if not unread:
            yield layered
    if layered and layered.memory and unread:  # whose masks they may be; it is given, too
        own = [name for name, role in layered.roles.items() if role == "memory"]
        named = [replace(a, default=NOTHING) if a.name in own else a for a in named]
    pooled = _attended(callee, named, raised, prior, weighted=False)
    if not unread or (pooled and len(pooled.unread) < len(unread)):
        yield pooled
    if layered and unread:
        left = tuple(name for name in layered.left if name not in unread)
        yield layered.replace(left=left, unread=unread)


def _unread(callee: Callee, layered: Binding | None, named: Sequence[Argument]) -> tuple[str, ...]:
    """The masks that a layer does not read, which may be those of its memory.

    Of queries that know each other, another reading would say that they do not.
    """
    if layered is None or not layered.memory:
        return layered.unread if layered else ()
    reach = Calls(callee, layered).reach()
    if reach is None or bool((reach & ~torch.eye(reach.shape[-1], dtype=torch.bool)).any()):
        return ()
    return tuple(a.name for a in named if a.role in MASKS and a.name not in layered.masks)


def _check_said(target: Any, binding: Binding, prior: Prior) -> None:
    """Raise for an argument that a user called a mask and that hides nothing."""
    for name in (n for n, role in prior.roles.items() if role in MASKS and n not in binding.masks):
        raise StyleError(
            f"{name_of(target)}: {name} alone hides nothing from the output as {prior.roles[name]} "
            "in any form that was tried. Leave it out of --call to check the rest, or show one "
            "call by an example."
        )


def without_copies(callee: Callee, binding: Binding) -> Binding:
    """The binding that hands tensors on as they are, if calls take such as are not contiguous."""
    loose = binding.replace(dense=False)
    calls = Calls(callee, loose)
    plain = calls.tensors()
    strided = [tensor.mT.contiguous().mT for tensor in plain]
    return binding if calls(plain) is None or calls(strided) is None else loose


def _widths_named(raised: Sequence[str], width: int) -> list[int]:
    """The numbers of features that errors name where they name that of the trials, too."""
    texts = [{*map(int, re.findall(r"(?<![:\d])\d+", text))} for text in raised]
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
    callee: Callee,
    named: Sequence[Argument],
    raised: list[Raised],
    prior: Prior,
    weighted: bool = True,
) -> Binding | None:
    """The binding of what takes a query, and a key and value or a memory.

    What raises without any mask, positions or coverage is given some.
    """
    asked = (*MASKS, "embedded_positions", "coverage", "previous_weights")
    masks = [a for a in named if a.role in asked and not a.required]
    needed = [replace(a, default=NOTHING) if a in masks else a for a in named]
    likely, roles = plans(named), {a.name: a.role for a in named}
    if not prior.is_free:  # its first three are query, key and value, whatever they are called
        likely = [mains for mains in likely if len(mains) == 3][:1]
    best: Binding | None = None
    for mains, taken in itertools.product(likely, [named, needed] if masks else [named]):
        errors = raised if taken is named else []
        apart, mixing = trials(callee, taken, mains, errors, prior.layouts)
        fits = [
            [b for b in found if b.shape != "memory" or b.weights or not weighted]
            for found in (apart, mixing)
        ]
        bindings = fits[0] or fits[1]
        if not weighted:  # nothing else tells axes of its own from those that only broadcast
            bindings = sorted(bindings, key=lambda b: len(b.layout) + ("1" in b.layout))
        fitting = [each for each in bindings if each.shape != "scores"] or bindings
        # in a layout that is not its own, it may still give what sums to one over as many keys
        fitting = [each for each in fitting if each.output is not None] or fitting
        fitting = [each for each in fitting if not _broadcasts(callee, each, fitting)]
        other = [each for each in fitting[1:] if not _agree(callee, each, fitting[0])]
        if other:
            fitting = [each for each in fitting if _keeps_heads_apart(callee, each)] or fitting
            other = [each for each in fitting[1:] if not _agree(callee, each, fitting[0])]
        if other:
            first, second = (f"{each.layout}, {each.memory}" for each in (fitting[0], other[0]))
            raise StyleError(
                f"it can be called with query and key as {first} and as {second}, and gives other "
                "outputs: say which by an example of a call, or by --as sdpa, which is "
                "(B, H, L, E), or --as flash, which is (B, L, H, E)."
            )
        if fitting:
            fitting = [with_values(callee, each) for each in fitting]
            binding = _reading_most(callee, fitting, named)
            is_sure = binding.pools or binding.weights is None
            if binding.shape == "attention" and not roles.items() >= mains.items():
                is_sure = pools(callee, binding)  # names do not tell keys from values
            if is_sure:
                return binding
            best = best or binding  # the two sides may be taken for each other
    return best


def _keeps_heads_apart(callee: Callee, binding: Binding) -> bool:
    """Whether the values of one head change the output of that head alone."""
    calls = Calls(callee, binding)
    query, key, value = calls.tensors()
    plain = calls([query, key, value])
    value[:, :1] *= -1.5
    moved = calls([query, key, value])
    return plain is not None and moved is not None and close(moved[:, 1:], plain[:, 1:])


def pools(callee: Callee, binding: Binding) -> bool:
    """Whether weights over a memory are given, or values apart from the keys are pooled."""
    if binding.shape != "attention":
        return binding.weights is not None or binding.one_query
    calls = Calls(callee, binding)
    query, key, value = calls.tensors()
    output = calls([query, key, value * 0 + 3])
    return output is not None and close(output, output * 0 + 3)


def with_values(callee: Callee, binding: Binding) -> Binding:
    """The binding, of a memory with whether its output is the weights times it.

    Where all of a memory is alike, any pooling gives it back, also one that mixes up slots, and
    one by wrong weights gives a multiple of it; what another layer makes of it is neither.
    """
    if binding.shape != "memory" or binding.output is None or binding.weights is None:
        return binding
    own = binding.replace(pools=False)
    calls = Calls(callee, own)
    query, key, _ = calls.tensors()
    alike = key[:1, ..., :1, :].expand(key.shape)
    both = calls.both([query, alike, alike])
    if both is None:
        return binding
    output, pooled = both[0], both[1] @ alike
    multiple = (output * pooled).sum() / pooled.square().sum().clamp_min(1e-30)
    return binding if close(output, multiple * pooled) else own


def _reading_most(callee: Callee, fitting: Sequence[Binding], named: Sequence[Argument]) -> Binding:
    """The first binding in which all masks are read, or else the fewest are not."""
    best: Binding | None = None
    for binding in [each for each in fitting if each.one_query == fitting[0].one_query]:
        found = masked(callee, binding, named)
        if best is None or len(found.unread) < len(best.unread):
            best = found
        if not best.unread:
            break
    assert best is not None
    return best


def _broadcasts(callee: Callee, binding: Binding, others: Sequence[Binding]) -> bool:
    """Whether a call with fewer axes, and keys in another order, gives the same.

    One with more axes may run by broadcasting alone, whatever the code means by them.
    """
    return any(
        len(other.layout) < len(binding.layout)
        and other.memory.replace("H", "") != binding.memory.replace("H", "")
        and _agree(callee, binding, other)
        for other in others
    )


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


def _layered(callee: Callee, named: Sequence[Argument], raised: list[Raised]) -> Binding | None:
    """The binding of what takes hidden states, and perhaps a second sequence."""
    for mains in layer_plans(named):
        binding = layer_trials(callee, named, mains, raised)
        if binding is None:
            continue
        memory = next((a for a in named if mains.get(a.name) == "memory"), None)
        counts = memory is None or (memory.required and memory.role)  # as its name says
        if memory is None or counts or not _is_idle(callee, binding):
            return masked(callee, binding, named)
        if not memory.required:
            roles = {n: role for n, role in binding.roles.items() if n != memory.name}
            bare = binding.replace(roles=roles, memory="", idle=(memory.name,))
            return masked(callee, bare, named)
        raised.append(Raised(f"{memory.name} was taken for a memory, and changes no output"))
    return None


def _is_idle(callee: Callee, binding: Binding) -> bool:
    """Whether a second sequence, or keys and values, change no output."""
    calls = Calls(callee, binding)
    first, *others = calls.tensors()
    plain, moved = calls([first, *others]), calls([first, *(-1.5 * other for other in others)])
    return plain is not None and moved is not None and torch.equal(plain, moved)
