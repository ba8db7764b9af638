"""How somebody's code is called, as data: layouts, roles, the form of a mask, parts of a result.

Axes are letters: B items, H heads, L queries or tokens, S keys, E features, Y and X a grid, R
distances; ``1`` is an axis of size one. A layout without L takes one query at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeGuard

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from attnbench.errors import RefusalError
from attnbench.styles import TENSORS

Shape = Literal["scores", "attention", "memory", "layer"]
Part = int | str | None
"""Where a tensor is in what a call gives: at an index, under a key, or ``None`` for all of it; a
name that begins with a dot is an attribute of the module after the call."""
FIRST, SECOND = "<output>", "<more>"
"""Parts that each call tells: the output by its place or its name, and what comes with it."""


@dataclass(frozen=True)
class Mask:
    """The form of a mask.

    Args:
        axes: of ``LS``, ``BLS``, ``B1LS``, ``BHLS``, ``GLS``, ``BS``, ``B1S``, ``B11S``, ``SB``;
            ``..LS`` and ``..1S`` for what broadcasts to ``BHLS``, and ``B`` for lengths.
        says: ``shows`` (True may attend), ``hides``, ``ones`` (1 may attend), ``zeros`` (1 is
            hidden), ``added`` to the scores, or ``lengths``.
        floating: whether it may be floating, too, and is added to the scores then.
        leaks: the share of a hidden slot's effect that it leaves; 0 for a mask as it should be.
    """

    axes: str
    says: str
    floating: bool = False
    leaks: float = 0.0

    @property
    def by_key(self) -> bool:
        """Whether it has one row for all queries."""
        return "L" not in self.axes

    def __str__(self) -> str:
        words = {
            "shows": "True may attend",
            "hides": "True hides",
            "ones": "1 may attend",
            "zeros": "1 hides",
            "added": "added to the scores",
            "lengths": "lengths",
        }
        leak = f" but **a hidden slot keeps {self.leaks:.0%} of its effect**" if self.leaks else ""
        return f"{in_words(self.axes)}, {words[self.says]}{leak}"


@dataclass(frozen=True)
class Fill:
    """A tensor of one number that a call gets for an argument which nothing varies.

    Args:
        axes: its axes; G are items times the callee's own heads.
        number: the number, or ``None`` for one over the number of keys.
        boolean: whether it holds truth values.
        counts: ``S``, if it holds the number of keys, as an integer, or ``E``, of features.
        listed: whether it is given as a list, or without axes as a number.
    """

    axes: str
    number: float | None = None
    boolean: bool = False
    counts: str = ""
    listed: bool = False

    def value(self, sizes: Mapping[str, int], like: Tensor) -> Any:
        """What a call of these sizes gets, on the device and in the dtype of another tensor."""
        shape = [sizes[letter] for letter in self.axes]
        if self.counts:
            made = torch.full(shape, sizes[self.counts], device=like.device)
            return made.tolist() if self.listed else made
        number = 1 / sizes["S"] if self.number is None else self.number
        dtype = torch.bool if self.boolean else like.dtype
        return torch.full(shape, number, dtype=dtype, device=like.device)


@dataclass(frozen=True)
class Through:
    """What a submodule of the callee makes of the memory, as keys that are projected beforehand.

    Args:
        place: the name of the submodule.
    """

    place: str


@dataclass(frozen=True, eq=False)
class Given:
    """What an example gave for an argument: its first item for all items, and its first tokens.

    Args:
        tree: tensors and other things, in tuples and dicts.
        axes: what the axes of each of its leaves are: ``B``, ``H``, ``L``, ``S``, and ``.`` for
            others; a ``b`` is one with the axis behind it in a call, and ``W`` is of windows, of
            which each image has as many.
    """

    tree: Any
    axes: tuple[str, ...]

    def value(self, sizes: Mapping[str, int], like: Tensor) -> Any:
        """The argument of a call of so many items ``B``, heads ``H``, tokens ``L`` and keys ``S``.

        Raises:
            RefusalError: the example has fewer.
        """
        leaves, form = pytree.tree_flatten(self.tree)
        made = [
            self._cut(leaf, axes, sizes, like) if isinstance(leaf, Tensor) else leaf
            for leaf, axes in zip(leaves, self.axes, strict=True)
        ]
        return pytree.tree_unflatten(made, form)

    @staticmethod
    def _cut(leaf: Tensor, axes: str, sizes: Mapping[str, int], like: Tensor) -> Tensor:
        for place, letter in enumerate(axes):
            if letter in ("B", "b"):
                shape = [*leaf.shape]
                shape[place] = sizes["B"]
                leaf = leaf.narrow(place, 0, 1).expand(shape)
            elif letter == "W":
                leaf = leaf.narrow(place, 0, 1)
            elif letter in sizes:
                if sizes[letter] > leaf.shape[place]:
                    what = {"H": "heads", "L": "tokens", "S": "keys"}[letter]
                    raise RefusalError(f"the example has {leaf.shape[place]} {what}")
                leaf = leaf.narrow(place, 0, sizes[letter])
        leaf = leaf.contiguous()  # as the example's own is, which code may view
        if "b" in axes:
            leaf = leaf.flatten(axes.index("b"), axes.index("b") + 1)
        return leaf.to(like) if leaf.is_floating_point() else leaf.to(like.device)


@dataclass(frozen=True, kw_only=True)
class Binding:
    """How a callee is called.

    Args:
        shape: scores of two sequences; query, key and value; one query over a memory; hidden
            states.
        layout: axes of the query, or of the hidden states.
        memory: axes of key and value, or of the second sequence.
        roles: the role of each argument that is passed, in the order of the signature; those that
            are passed by position are called 0, 1, 2.
        masks: the forms of those that are masks.
        output: where the output is, and its axes; without one it is weights times value.
        weights: where the weights, the scores or the log-sums of scores are, and their axes.
        reset: a method that forgets what the callee keeps, called before each call.
        prepare: a method that gets the keys before each call.
        pools: whether a memory's output is the weights times it; else no value is part of a call.
        square: whether it takes as many queries as keys only.
        one_mask: whether it takes causality in its mask, where it is given one.
        dense: whether its tensors are made contiguous first, as it raises on others.
        paired: arguments that get a tensor more than once, in a tuple: how often.
        left: arguments that are left at their defaults.
        tokens: the only number of tokens that it takes; 0 if it takes any.
        idle: second sequences that change no output, and are not given.
        unread: those that are masks by their names, and hide nothing in any form that was tried.
        wide: features of a layer's memory; 0 for as many as hidden states have.
        values: what arguments get that nothing varies: constants, or a :class:`Fill`.
    """

    shape: Shape
    layout: str
    memory: str = ""
    roles: Mapping[str, str] = field(default_factory=dict)
    masks: Mapping[str, Mask] = field(default_factory=dict)
    output: tuple[Part, str] | None = None
    weights: tuple[Part, str] | None = None
    reset: str | None = None
    prepare: str | None = None
    pools: bool = True
    square: bool = False
    one_mask: bool = False
    dense: bool = False
    tokens: int = 0
    idle: tuple[str, ...] = ()
    paired: Mapping[str, int] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    wide: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)

    def replace(self, **changes: Any) -> Binding:
        """A copy with some fields changed."""
        return replace(self, **changes)

    @property
    def sums(self) -> bool:
        """Whether log-sums of scores come with each output."""
        return self.weights is not None and "S" not in self.weights[1]

    @property
    def one_query(self) -> bool:
        """Whether it takes one query of an item at a time."""
        return self.shape != "layer" and "L" not in self.layout

    def sentence(self) -> str:
        """How it is called, in at most 160 characters."""
        text = self._said() + self._others()
        if len(text) > _LONGEST:
            text = f"{self._said()}; more arguments follow"
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

    def rest(self) -> tuple[str, ...]:
        """What the sentence has no room for."""
        named = self._others()
        return (named.removeprefix("; "),) if named and named not in self.sentence() else ()

    def _said(self) -> str:
        axes = dict.fromkeys(("key", "value", "memory"), self.memory)
        axes = {**dict.fromkeys(TENSORS, self.layout), **axes}
        often = {name: f"{count} times " for name, count in self.paired.items()}
        tensors = [
            f"{name} {often.get(name, '')}{in_words(axes[self.roles[name]])}"
            for name in self._tensors()
        ]
        text = f"called with {', '.join(tensors)}"
        text += f"; L = {self.tokens} only" if self.tokens else ""
        given = self.output[1] if self.shape == "layer" and self.output else "L"
        text += "" if {*given} & {*"LSYX?"} else f"; it gives {in_words(given)}"  # for all tokens
        if not self.pools:
            told = "its output is more than weights times memory"
            text += f"; {told if self.weights else 'no weights are found'}"
        for name, mask in self.masks.items():
            if self.shape == "layer":  # whose masks are of its own tokens
                mask = replace(mask, axes=mask.axes.replace("S", "L"))
            text += f"; {name} {mask}"
        return text

    def _tensors(self) -> list[str]:
        """The arguments that get the tensors of a call."""
        tensors = [name for name, role in self.roles.items() if role in TENSORS]
        return [name for name in tensors if not isinstance(self.values.get(name), Given)]

    def _others(self) -> str:
        """What is said of the arguments that nothing varies."""
        given = {n: value for n, value in self.values.items() if isinstance(value, Given)}
        firsts = [n for n, value in given.items() if {*"BbW"} & {*"".join(value.axes)}]
        others = {
            "held as in the example:": [name for name in given if name not in firsts],
            "held as in the example's first item:": firsts,
            "prepared by": [each for each in (self.reset, self.prepare) if each],
            "always": [f"{name}={_constant(value)}" for name, value in self._constants().items()],
            "by its tokens:": self._following(),
            "left at their defaults:": [name for name in self.left if name not in self.unread],
            "**no mask that was tried fits**:": list(self.unread),
            "**changes no output**:": list(self.idle),
            "made contiguous, without which it raises:": self._tensors() if self.dense else [],
        }
        return "".join(f"; {what} {', '.join(names)}" for what, names in others.items() if names)

    def _following(self) -> list[str]:
        """The arguments that follow from a call's tokens, and what each is."""
        return [
            name if name == role else f"{name} as {role}"
            for name, role in self.roles.items()
            if role in _FOLLOWING and not isinstance(value := self.values.get(name), Given)
            if role not in _TABLES or value is not None
        ]

    def _constants(self) -> dict[str, Any]:
        """What arguments get that is the same in every call, and that nobody asked for."""
        return {
            name: value
            for name, value in self.values.items()
            if name not in self.masks
            and self.roles.get(name) not in (*TENSORS, *_VARIED)
            and (value is None or isinstance(value, _SAID))
        }


_LONGEST = 160
_SAID = (bool, int, float, str, Fill, Through, tuple, list, dict)
_TABLES = ("rotary", "cos", "sin")
"""Roles of what follows from a call's tokens and need not be given."""
_FOLLOWING = ("grid", "rows", "columns", "positions", "slots", "start", "bounds", *_TABLES)
"""Roles of arguments that follow from a call's tokens."""
_VARIED = (*_FOLLOWING, "return_weights")


def _constant(value: Any) -> str:
    """A constant in a few characters."""
    if isinstance(value, tuple):
        return f"({', '.join(map(_constant, value))})"
    if isinstance(value, Through):
        return f"{value.place}(memory)"
    if not isinstance(value, Fill):
        return repr(value)
    if value.counts:
        return f"{value.counts} {in_words(value.axes) if value.axes else ''}".rstrip()
    number = "1/S" if value.number is None else f"{value.number:g}"
    return f"{bool(value.number) if value.boolean else number} {in_words(value.axes)}"


def in_words(axes: str) -> str:
    """Axes as people write them: ``(B, L, E)``."""
    named = [{"R": "2S-1"}.get(letter, letter) for letter in axes]
    return f"({', '.join(named)}{',' if len(axes) == 1 else ''})"


def part_of(result: Any, part: Part, module: Any = None) -> Any:
    """The part of what a call gave."""
    if part is None:
        return result
    if part in (FIRST, SECOND):
        return output_and_more(result)[part == SECOND]
    if isinstance(part, str) and part.startswith("."):
        return getattr(module, part[1:], None)
    if isinstance(part, str) and not isinstance(result, Mapping):
        return getattr(result, part, None)
    return result[part]


_OUTPUTS = ("output", "attn_output", "context", "context_vector", "last_hidden_state", "out")
_WEIGHTS = ("weights", "attn_weights", "attention_weights", "attentions", "p_attn", "attn")


def output_and_more(result: Any) -> tuple[Any, Any]:
    """The output of what a callee returns, and the weights or whatever comes with it, or ``None``.

    Args:
        result: a tensor; a tuple or list that begins with the output, of which the next that is not
            ``None`` is taken; or a dictionary, named tuple or object with a usual name for it, or
            with a single tensor.

    Raises:
        RefusalError: nothing tells which of the tensors of a dictionary or object is the output.
    """
    named = result if isinstance(result, Mapping) else None
    if named is None and hasattr(result, "_asdict"):
        named = result._asdict()
    if named is None and not isinstance(result, Tensor | tuple | list):
        named = getattr(result, "__dict__", {})
    if named:
        output = next((named[name] for name in _OUTPUTS if name in named), None)
        if output is not None:
            return output, next((named[name] for name in _WEIGHTS if name in named), None)
        tensors = [name for name, value in named.items() if isinstance(value, Tensor)]
        if not isinstance(result, tuple) and tensors:
            if len(tensors) > 1 or {*tensors} & {*_WEIGHTS}:
                raise RefusalError(
                    f"it returns {', '.join(map(repr, tensors))}, and nothing says which of them "
                    f"is the output: call it {_OUTPUTS[0]!r}, or return a tuple that begins with "
                    "it."
                )
            return named[tensors[0]], None
    if isinstance(result, tuple | list) and result:
        return result[0], next((part for part in result[1:] if part is not None), None)
    return result, None


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of numbers on the CPU, which can be read and compared."""
    return (
        isinstance(value, Tensor)
        and (value.device.type, value.layout) == ("cpu", torch.strided)
        and value.is_floating_point()
        and not value.is_nested
    )
