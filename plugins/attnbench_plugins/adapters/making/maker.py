"""One attempt to make a module of a class: what each argument of its constructor gets.

A config is made of its own class where there is one, and else a stand-in answers what is read from
it, by name, and remembers it.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import enum
import inspect
import os.path
import sys
import typing
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from attnbench.errors import StyleError
from attnbench.styles import NOTHING, Argument, arguments, confined, plain_type, role_of
from attnbench_plugins.adapters.making.groups import with_groups
from attnbench_plugins.adapters.making.widths import (
    LONGEST,
    SIDES,
    VARIED,
    Widths,
    choices,
    guesses,
    tree_of,
)

_DEPTH = 3
_CONFIG_ENDINGS = ("Config", "Args", "Cfg", "Hparams", "HParams", "Options", "Params")


class MakingError(StyleError):
    """No module can be made of a class; the message says what was tried, and what is missing."""


class UnansweredError(AttributeError, KeyError):
    """A stand-in was asked for a name that says nothing."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name: str = name


CALLED = {"activation": (nn.GELU, "nn.GELU"), "norm": (nn.LayerNorm, "nn.LayerNorm")}
"""What is given, by its role, for a class that is ``None`` and that a constructor calls."""


class Maker:
    """One attempt to make a module.

    Args:
        target: the class.
        sizes: for which it is made.
        answers: which of the guesses to give for each name that says nothing; it is changed.
        is_filled: whether sizes are given that are ``None`` by default.
    """

    def __init__(
        self, target: Any, sizes: Widths, answers: dict[str, int], is_filled: bool = False
    ) -> None:
        self.target, self.sizes, self.answers, self.is_filled = target, sizes, answers, is_filled
        self.counts: dict[str, int] = {}
        self.source = ""
        self.on_cpu = False
        self.module = target.__module__
        self.space = vars(sys.modules.get(target.__module__, SimpleNamespace()))

    def make(self) -> nn.Module:
        """The module, in evaluation."""
        given: dict[str, Any] = {}
        source: dict[str, str] = {}
        try:
            with confined() as mode:
                given, source = self.arguments_of(self.target, "", 0)
                made = with_groups(lambda: self.target(**given))
        finally:  # a stand-in knows only now what it was asked
            standing = {n: v.source for n, v in given.items() if isinstance(v, _StandIn)}
            self.source = f"{self.target.__name__}({_listed({**source, **standing})})"
        self.on_cpu = mode.used
        if not isinstance(made, nn.Module):
            raise MakingError(f"{self.target.__name__} gives {type(made).__name__}, not a module")
        made.eval()  # which some override, and give nothing
        return made

    @property
    def guessed(self) -> tuple[str, ...]:
        """The arguments whose names say nothing."""
        return tuple(name for name in self.answers if not name.endswith(_UNSAID))

    def advance(self) -> bool:
        """Change the last guess that can be changed; whether there is one."""
        for name in reversed([*self.answers]):
            self.answers[name] += 1
            if self.answers[name] < self.counts.get(name, 0):
                return True
            self.answers[name] = 0
        return False

    def arguments_of(
        self, target: Any, prefix: str, depth: int
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """The arguments for a constructor, and their Python source."""
        given, source = {}, {}
        for argument in arguments(target, "constructor") or ():
            found = self.value_of(argument, prefix, depth)
            if found is not None:
                given[argument.name], source[argument.name] = found
        return given, source

    def value_of(self, argument: Argument, prefix: str, depth: int) -> tuple[Any, str] | None:
        """The value of an argument, and its source; ``None`` to leave it at its default."""
        role = argument.role
        if not argument.required:
            return self.instead_of(argument, prefix, depth)
        kind = plain_type(argument.annotation)
        if typing.get_origin(kind) is tuple:
            return self.tuple_of(argument, typing.get_args(kind), prefix, depth)
        if inspect.isclass(kind) and issubclass(kind, enum.Enum):
            member = next(iter(kind))
            return member, f"{self.name_of(kind)}.{member.name}"
        if _is_config(kind):
            return self.config_named(argument.name, prefix, depth, [kind])
        if role == "config" or (kind is NOTHING and self.reads_from(argument.name)):
            near = [v for n, v in self.space.items() if n.endswith(_CONFIG_ENDINGS)]
            near = [value for value in near if _is_config(value)]
            return self.config_named(argument.name, prefix, depth, near if len(near) == 1 else [])
        if argument.name == "processor" and (found := self.processor()) is not None:
            return found
        if inspect.isclass(kind) and issubclass(kind, nn.Module):
            width = self.sizes.width
            return nn.Linear(width, width), "nn.Linear(size, size)"
        known = None if role in SIDES else self.sizes.of(role)
        if known is not None:
            return known
        is_named = role is None and kind in (NOTHING, str)
        named = choices(self.target, argument.name) if is_named else ()
        options = dict.fromkeys((*named, *guesses(self.target, role, kind, self.sizes)))
        return self.guess(prefix + argument.name, tuple(options))

    def tuple_of(
        self, argument: Argument, kinds: tuple[Any, ...], prefix: str, depth: int
    ) -> tuple[Any, str] | None:
        """A tuple of annotated parts, each of which gets what an argument of this name gets."""
        parts = [dataclasses.replace(argument, annotation=k) for k in kinds if k is not Ellipsis]
        found = [self.value_of(part, prefix, depth) for part in parts]
        pairs = [pair for pair in found if pair is not None]
        text = ", ".join(text for _, text in pairs)
        return tuple(value for value, _ in pairs), f"({text})" if len(pairs) > 1 else f"({text},)"

    def instead_of(self, argument: Argument, prefix: str, depth: int) -> tuple[Any, str] | None:
        """What is given in place of a default: a small size, no dropout, or what a call needs."""
        default, role, kind = argument.default, argument.role, plain_type(argument.annotation)
        if default is None:
            if role == "config" and depth == 0 and _is_config(kind):
                return self.config_of(kind, f"{prefix}{argument.name}.", depth)
            if argument.name == "processor":
                return self.processor()
            place, size = f"{prefix}{argument.name}{_UNSAID}", self.sizes.of(role)
            size = CALLED.get(role or "", size)
            is_known = role in VARIED or role in CALLED
            if size is not None and is_known and (self.is_filled or place in self.answers):
                found = self.guess(place, (size[0], None))
                return None if found[0] is None else size
            return size if role == "layer" else None
        if default is False and "cross" in argument.name:
            forward: Any = getattr(self.target, "forward", None)
            if any(a.role == "memory" for a in arguments(forward, "forward") or ()):
                return self.guess(f"{prefix}{argument.name}{_UNSAID}", (True, False))
        if role in SIDES and type(default) in (int, tuple):
            side = self.sizes.grid if type(default) is int else (self.sizes.grid,) * len(default)
            return self.guess(f"{prefix}{argument.name}{_UNSAID}", (side, default))
        if isinstance(default, bool) or not isinstance(default, int | float):
            return None
        return self.instead_of_number(argument, prefix, default)

    def instead_of_number(
        self, argument: Argument, prefix: str, default: float
    ) -> tuple[Any, str] | None:
        """What is given in place of a default that is a number."""
        role = argument.role
        is_exact = role_of(argument.name, "constructor", exact=True) == role
        if role == "length" and default > LONGEST:
            return LONGEST, repr(LONGEST)
        if role == "dropout":
            share = type(default)(self.sizes.dropout)
            return share, repr(share)
        size = self.sizes.of(role) if role in VARIED and (default > 1 or is_exact) else None
        if size is None or is_exact:
            return size
        # only the ending of its name says that it is a size, as of a kernel: it may be another
        chosen = self.guess(f"{prefix}{argument.name}{_UNSAID}", (size[0], default))
        return size if chosen[0] == size[0] else chosen

    def reads_from(self, name: str) -> bool:
        """Whether the constructor reads sizes of an argument as attributes, as of a config."""
        private = name.removeprefix(f"_{self.target.__name__.lstrip('_')}")
        read = {
            node.attr
            for node in ast.walk(tree_of(getattr(self.target, "__init__", None)))
            if isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.value.id == private
        }
        return any(role_of(attribute, "constructor") in VARIED for attribute in read)

    def processor(self) -> tuple[Any, str] | None:
        """What computes the attention of a class that leaves it to another.

        That is the one of its file whose name begins most like its own.
        """
        own = [
            name
            for name, value in self.space.items()
            if "Processor" in name and getattr(value, "__module__", "") == self.module
        ]
        target = self.target.__name__  # the prefix is of letters, and of no path
        own.sort(key=lambda name: -len(os.path.commonprefix([name, target])))  # noqa: RUF071  no paths
        for name in own:
            with contextlib.suppress(Exception):
                return self.space[name](), f"{name}()"
        return None

    def guess(self, name: str, options: tuple[Any, ...]) -> tuple[Any, str]:
        """The value that the answers choose for a name that says nothing."""
        self.answers.setdefault(name, 0)
        self.counts[name] = len(options)
        value = options[self.answers[name]]
        return value, "size" if value == self.sizes.width else repr(value)

    def config_named(
        self, name: str, prefix: str, depth: int, kinds: Sequence[Any]
    ) -> tuple[Any, str]:
        """A config of the class that is declared, or is the file's only one, or else a stand-in."""
        options = (*kinds, _StandIn)
        place = f"{prefix}{name}{_UNSAID}"
        self.counts[place] = len(options)
        chosen = options[self.answers.setdefault(place, 0) if kinds else 0]
        if chosen is _StandIn:
            return _StandIn(self, f"{prefix}{name}."), _MARK
        return self.config_of(chosen, f"{prefix}{name}.", depth)

    def config_of(self, kind: Any, prefix: str, depth: int) -> tuple[Any, str]:
        """A config of its own class."""
        if depth == _DEPTH:
            raise RecursionError(f"its config holds a config, {_DEPTH} deep and more")
        given, source = self.arguments_of(kind, prefix, depth + 1)
        return kind(**given), f"{self.name_of(kind)}({_listed(source)})"

    def name_of(self, kind: Any) -> str:
        """How a class is called in the module of the target."""
        own = str(kind.__name__)
        for name, value in self.space.items():
            if value is kind:
                return name
            if inspect.ismodule(value) and vars(value).get(own) is kind:
                return f"{name}.{own}"
        return own


_MARK = "<config>"
_UNSAID = ": unsaid"
"""The ending of what is tried and of which nothing is said."""


class _StandIn:
    """A config that answers what is read from it, as an attribute or an item, and remembers it.

    A name that says nothing is not there at first, so that ``getattr(config, name, default)`` gets
    its default; where that fails, it is guessed.
    """

    def __init__(self, maker: Maker, prefix: str) -> None:
        self.__dict__.update(_maker=maker, _prefix=prefix, _asked={}, _by_item=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        maker, place = self._maker, self._prefix + name
        role = role_of(name, "constructor")
        found = maker.sizes.of(role)
        if role == "config":
            found = _StandIn(maker, f"{place}."), _MARK
        if found is None and place not in maker.answers and role != "method":
            raise UnansweredError(place)
        if found is None:
            options = guesses(maker.target, role, None, maker.sizes)
            found = maker.guess(place, (*options, _StandIn(maker, f"{place}.")))
        self._asked[name] = found
        return found[0]

    def __getitem__(self, name: str) -> Any:
        self.__dict__["_by_item"] = True
        return self.__getattr__(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> _StandIn:
        return self

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return _Answered, ({name: found[0] for name, found in self._asked.items()},)

    def __contains__(self, name: object) -> bool:
        return role_of(str(name), "constructor") is not None

    def get(self, name: str, default: Any = None) -> Any:
        """The item of a name whose meaning is known; the default for others."""
        self.__dict__["_by_item"] = True
        return self.__getattr__(name) if name in self else default

    @property
    def source(self) -> str:
        """Python that makes a config with what was asked."""
        pairs = {
            name: value.source if isinstance(value, _StandIn) else text
            for name, (value, text) in self._asked.items()
        }
        return f"{'dict' if self._by_item else 'types.SimpleNamespace'}({_listed(pairs)})"


class _Answered(dict[str, Any]):
    """What a stand-in answered, as attributes and as items: what is left of it in a file."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


def _is_config(kind: Any) -> bool:
    """Whether a class is a config: a dataclass, a named tuple, of pydantic, or by its name."""
    if not inspect.isclass(kind) or issubclass(kind, nn.Module | torch.Tensor):
        return False
    fields = dataclasses.is_dataclass(kind) or hasattr(kind, "_fields")
    return fields or hasattr(kind, "model_fields") or kind.__name__.endswith(_CONFIG_ENDINGS)


def _listed(source: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={text}" for name, text in source.items())
