"""The arguments of a callable: what each means, what a style can pass, and other names for them."""

from __future__ import annotations

import ast
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import nn

from attnbench.calling.roles import SETTINGS, named, role_of
from attnbench.errors import StyleError

NOTHING: Any = inspect.Parameter.empty
"""The default of an argument that has none, and the annotation of one that has none."""


@dataclass(frozen=True)
class Argument:
    """An argument of a callable.

    Args:
        name: its name.
        role: what it means, of the table that was asked; ``None`` where its name says nothing.
        default: its default; :data:`NOTHING` where it has none.
        annotation: its type, resolved where that is possible; :data:`NOTHING` where it has none.
        given: what an example gives for it, in each way to cut that; none without one.
    """

    name: str
    role: str | None
    default: Any = NOTHING
    annotation: Any = NOTHING
    given: tuple[Any, ...] = ()

    @property
    def required(self) -> bool:
        """Whether a call has to give it."""
        return self.default is NOTHING


def arguments(callee: Callable[..., Any], table: str) -> list[Argument] | None:
    """The arguments of a callable in order, without ``*args``, ``**kwargs`` and ``self``.

    Args:
        callee: a class, a function or a module; of a module those of its ``forward``.
        table: the table of names: ``constructor`` or ``forward``.

    Returns:
        ``None`` where nothing tells them, as for some built-in functions.
    """
    called, parameters, is_open = _parameters(callee)
    if parameters is None:
        return None
    types = annotations_of(called.__init__ if inspect.isclass(called) else called)
    found = [
        Argument(p.name, role_of(p.name, table), p.default, types.get(p.name, NOTHING))
        for p in parameters
    ]
    if table == "forward":  # a mask that is a word is none
        found = [replace(a, role=None) if plain_type(a.annotation) is str else a for a in found]
    if inspect.isclass(called) and is_open:
        names = {argument.name for argument in found}
        found += [a for a in _of_bases(called, table) if a.name not in names]
    sides = {a.role for a in found} & _GRID
    return [replace(a, role=None) if {a.role} == sides else a for a in found]


_GRID = {"rows", "columns"}
"""Roles of arguments that mean something only together."""


def forward_of(target: Any) -> Any:
    """The function whose arguments a call takes: of a class or a module its ``forward``.

    Where that only hands ``*args`` on, it is that of the next base.
    """
    cls = target if inspect.isclass(target) else type(target)
    if not issubclass(cls, nn.Module) or hasattr(target, "__signature__"):
        return target
    found = [vars(kind)["forward"] for kind in cls.__mro__ if "forward" in vars(kind)]
    return next((each for each in found if not _hands_on(each)), found[0])


def call_arguments(target: Any) -> list[Argument] | None:
    """The arguments of a call of a target, as of :func:`arguments`."""
    function = forward_of(target)
    found = arguments(function, "forward")
    is_method = function is not target and found is not None
    return found[1:] if is_method and found else found  # without the module, whatever it is called


def _hands_on(function: Any) -> bool:
    """Whether a method takes any arguments by position, and names none of them."""
    try:
        kinds = [each.kind for each in inspect.signature(function).parameters.values()][1:2]
    except (TypeError, ValueError):
        return False
    return kinds == [inspect.Parameter.VAR_POSITIONAL]


def _parameters(callee: Any) -> tuple[Any, list[inspect.Parameter] | None, bool]:
    """What is called of a callee, its parameters if anything tells them, and if others go, too."""
    if not inspect.isclass(callee) and not hasattr(callee, "__signature__"):
        callee = getattr(callee, "forward", callee)
    try:
        found = [*inspect.signature(callee).parameters.values()]
    except (TypeError, ValueError):
        return callee, None, False
    known = [p for p in found if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    return callee, known, any(p.kind is p.VAR_KEYWORD for p in found)


def _of_bases(cls: type, table: str) -> list[Argument]:
    """The arguments that the constructor of a class may hand on to that of its base."""
    own = next((k for k in cls.__mro__ if "__init__" in vars(k)), object)
    rest = cls.__mro__[cls.__mro__.index(own) + 1 :]
    base = next((k for k in rest if "__init__" in vars(k)), object)
    if base in (object, nn.Module):
        return []
    return arguments(base, table) or []


def annotations_of(called: Any) -> dict[str, Any]:
    """The types that a callable declares; text that names nothing is left out."""
    try:
        return typing.get_type_hints(called)
    except Exception:  # one name of a module that is missing would hide all others
        space = vars(sys.modules.get(getattr(called, "__module__", ""), typing))
        return {
            name: found
            for name, kind in getattr(called, "__annotations__", {}).items()
            if (found := space.get(kind) if isinstance(kind, str) else kind) is not None
        }


def plain_type(annotation: Any) -> Any:
    """The one type that an annotation allows beside ``None``; itself where it allows several."""
    options = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
    is_union = type(None) in typing.get_args(annotation)
    return options[0] if is_union and len(options) == 1 else annotation


FIRST: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "queries", "q", "Q"),
    "key": ("key", "keys", "k", "K"),
    "value": ("value", "values", "v", "V"),
}
"""How libraries and textbooks call query, key and value."""

_MEANING = {name: meaning for meaning, names in FIRST.items() for name in names}
"""The meanings of ``queries``, ``q`` or ``Q``, as some styles call the query."""

MEANINGS: Mapping[str, tuple[str, ...]] = {
    "attn_mask": ("attn_mask", "mask", "attention_mask", "attn_bias"),
    "key_padding_mask": ("key_padding_mask",),
    **{meaning: named(role, "forward") for meaning, role in SETTINGS.items()},
    "window_size": ("window_size",),  # sliding_window is one number in transformers
}
"""How libraries call what a mechanism may accept."""

_IN_TEXT = re.compile(r"^\s*(\w+)\((.*?)\)\s*(?:->|:|$)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"\s*(\*{0,2}\w+)")


@dataclass(frozen=True)
class Keywords:
    """The arguments of a callee.

    Args:
        names: the names of all arguments, in order.
        required: names of those without a default.
        open: whether it takes any keyword.
    """

    names: tuple[str, ...]
    required: tuple[str, ...] = ()
    open: bool = False

    @functools.cached_property
    def named(self) -> dict[str, str]:
        """What a mechanism accepts, to the callee's own name for it."""
        found = {
            meaning: next((name for name in known if name in self.names), None)
            for meaning, known in MEANINGS.items()
        }
        return {meaning: name for meaning, name in found.items() if name is not None}

    def __contains__(self, meaning: object) -> bool:
        return meaning in self.named

    def spelt(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given by meaning, under the callee's own names if it has others."""
        named = self.named
        return {named.get(meaning, meaning): value for meaning, value in given.items()}


def keywords_of(callee: Callable[..., Any]) -> Keywords | None:
    """The keywords of a function, a class or a module's forward; ``None`` if nothing tells them."""
    called, parameters, is_open = _parameters(callee)
    if parameters is None:
        return _from_text(getattr(called, "__doc__", None) or "")
    required = tuple(p.name for p in parameters if p.default is p.empty)
    return Keywords(tuple(p.name for p in parameters), required, is_open)


def _from_text(text: str) -> Keywords | None:
    """Read from the first line of a docstring, as of what torch writes in C++."""
    match = _IN_TEXT.search(text)
    if match is None:
        return None
    parts = [part for part in match[2].split(",") if part.strip() not in ("", "*", "/")]
    found = [(name[1], "=" in part) for part in parts if (name := _NAME.match(part))]
    names = tuple(name for name, _ in found)
    return Keywords(names, tuple(name for name, has_default in found if not has_default))


_Adapter = TypeVar("_Adapter", bound=Callable[..., Any])
_FORM = 'write it like "f(queries=query, keys=key, values=value)"'
_HIDES = "~attn_mask"
_PASSED = (
    *("module", *FIRST, "key_cache", "value_cache", "cache_seqlens", "block_table"),
    *("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    *("valid_lens", *(name for names in MEANINGS.values() for name in names), _HIDES),
)
"""What a style may pass, in its order."""


def renames(adapter: _Adapter) -> _Adapter:
    """Let an adapter take ``call=``, by which the arguments of its callee are renamed."""

    @functools.wraps(adapter)
    def adapt(target: Any, *rest: Any, call: str | None = None, **fields: Any) -> Any:
        return adapter(target if call is None else renamed(target, call), *rest, **fields)

    return adapt  # type: ignore[return-value]  # it is called as the adapter is


def renamed(target: Any, call: str) -> Any:
    """A function, module or class whose forward has the names of a style.

    ``call="f(queries=query, keys=key, values=value)"`` reads as the call that is to be made: on the
    left of ``=`` the callee's name, on the right what is passed. What has no ``=`` goes by
    position. ``~attn_mask`` passes a boolean mask to a callee for which True hides a key.

    Raises:
        StyleError: ``call`` is no call, passes what no style knows, or names no argument.
    """
    if not callable(target):
        return target  # the adapter says so
    names = _parsed(call)
    if not inspect.isclass(target):
        return _Renamed(target, names)

    @functools.wraps(target, updated=())
    def make(*sizes: Any, **given: Any) -> Any:
        return _Renamed(target(*sizes, **given), names)

    return make


class _Renamed(nn.Module):
    """A function or module whose arguments have other names."""

    def __init__(self, callee: Any, names: Mapping[str, str]) -> None:
        super().__init__()
        self.callee, self.names = callee, dict(names)
        self.__signature__ = _signature(callee, names)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # num_heads, attention_weights, the name of a function ...
            own = {**self.__dict__, **self.__dict__.get("_modules", {})}
            return getattr(own.get("callee"), name)

    def forward(self, *tensors: Any, **given: Any) -> Any:
        """The result of the callee."""
        passed = self.__signature__.bind(*tensors, **given).arguments
        mask = passed.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool and _HIDES in self.names.values():
            passed["attn_mask"] = ~mask
        own = {name: meaning.removeprefix("~") for name, meaning in self.names.items()}
        places = [passed[meaning] for name, meaning in own.items() if name.isdigit()]
        left = {n: passed[m] for n, m in own.items() if m in passed and not n.isdigit()}
        return self.callee(*places, **left)


def _signature(callee: Any, names: Mapping[str, str]) -> inspect.Signature:
    known = keywords_of(callee)
    unknown = [n for n in names if not n.isdigit() and known and n not in known.names]
    if known is not None and unknown and not known.open:
        raise StyleError(
            f"call: {unknown[0]!r} is no argument of the callee, which takes "
            f"{', '.join(known.names)}; {_FORM}."
        )
    needed = {*FIRST, *(m for n, m in names.items() if n.isdigit())}
    needed |= {m for n, m in names.items() if known is None or n in known.required}
    parameters = [
        inspect.Parameter(
            meaning.removeprefix("~"),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if meaning in needed else None,
        )
        for meaning in names.values()
    ]
    order = sorted(parameters, key=lambda p: (p.default is None, _PASSED.index(p.name)))
    return inspect.Signature(order)


def _parsed(call: str) -> dict[str, str]:
    """What a call passes: the callee's names, or places 0, 1 ..., with what they get."""
    written = call_written(call)
    if not written:
        raise StyleError(f"call: {call!r} names no argument; {_FORM}.")
    meanings = [_MEANING.get(text, text) for text in written.values()]
    plain = [meaning.removeprefix("~") for meaning in meanings]
    for meaning in meanings:
        if meaning not in _PASSED or plain.count(meaning.removeprefix("~")) > 1:
            what = "is passed twice" if meaning in _PASSED else "is nothing that a style passes"
            raise StyleError(
                f"call: {meaning!r} {what}; that is {', '.join(dict.fromkeys(_PASSED))}; {_FORM}."
            )
    return dict(zip(written, meanings, strict=True))


def call_written(call: str) -> dict[str, str]:
    """The Python that a written call passes, by names of arguments or places; empty if it is none.

    ``f(query, seen=~mask)`` passes ``query`` at place ``0``, and ``~mask`` for ``seen``.
    """
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except SyntaxError:
        return {}
    if not isinstance(tree, ast.Call):
        return {}
    own = [*map(str, range(len(tree.args))), *(str(keyword.arg) for keyword in tree.keywords)]
    passed = [*tree.args, *(keyword.value for keyword in tree.keywords)]
    return dict(zip(own, map(ast.unparse, passed), strict=True))
