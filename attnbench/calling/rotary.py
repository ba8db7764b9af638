"""Rotary angles for the tokens of a call: by functions of the callee's own file, and by plain ones.

A module that holds a table may be pickled, and so a table holds no closure.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.calling.attention_call import heads_of, number_of, numbers_of
from attnbench.calling.roles import role_of


@dataclass(frozen=True)
class Table:
    """Rotary angles, by a function of the width of a head and a length.

    Args:
        function: gives a tensor or a tuple of them.
        places: which of its arguments is the ``width``, and which the ``length``.
        part: which of a tuple it is; ``None`` for all that it gives.
        lead: whether it gets an axis of size one in front.
        named: under which name a module has the width; by default that of a head.
    """

    function: Callable[..., Any]
    places: Mapping[str, str] = field(
        default_factory=lambda: {"width": "width", "length": "length"}
    )
    part: int | None = None
    lead: bool = False
    named: str = ""

    def rows(self, module: Any, start: int, count: int, like: Tensor) -> Any:
        """The angles of ``count`` tokens from ``start`` on."""
        width = numbers_of(module, "head_dim").get(self.named)
        sizes = {"width": width or head_width(module, like.shape[-1]), "length": start + count}
        made = self.function(**{name: sizes[what] for name, what in self.places.items()})
        made = made if self.part is None else made[self.part]

        def cut(part: Any) -> Any:
            if not isinstance(part, Tensor):
                return part
            if start + count in part.shape:
                part = part.narrow(part.shape.index(start + count), start, count)
            part = part.to(like.device) if part.is_complex() else part.to(like)
            return part.unsqueeze(0) if self.lead else part

        return type(made)(map(cut, made)) if isinstance(made, tuple | list) else cut(made)


def head_width(module: Any, size: int) -> int:
    """The width of a head, as a module says it or by its number of heads."""
    return number_of(module, "head_dim") or size // heads_of(module)


def tables_of(function: Any, callee: Any) -> list[Table]:
    """The tables that a callee may take, those of its own file first."""
    module = inspect.getmodule(function)
    found: list[Table] = []
    for name, made in vars(module).items() if module is not None else ():
        looks = ("rope", "rotary", "freq", "cos", "angles")
        if not inspect.isfunction(made) or not any(part in name.lower() for part in looks):
            continue
        if (places := _places(made)) is not None:
            found += [Table(made, places, part) for part in (None, 0, 1)]
    found += [Table(_complex), Table(_pairs), *(Table(_halves, part=p) for p in (0, 1, None))]
    names = [*numbers_of(callee, "head_dim")][1:]
    return [
        replace(table, lead=lead, named=name)
        for name in ("", *names)
        for lead in (False, True)
        for table in found
    ]


def _places(function: Callable[..., Any]) -> dict[str, str] | None:
    """Which arguments of a function are a width and a length; ``None`` if it asks for more."""
    places: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        role = role_of(name, "constructor")
        if role in ("width", "head_dim"):
            places[name] = "width"
        elif role == "length" or name in ("end", "seq_len", "length", "n", "t", "max_pos"):
            places[name] = "length"
        elif parameter.default is parameter.empty:
            return None
    return places if sorted(places.values()) == ["length", "width"] else None


def _angles(width: int, length: int) -> Tensor:
    steps = torch.arange(0, width, 2)[: width // 2] / width
    return torch.outer(torch.arange(length, dtype=torch.float32), 10000.0**-steps)


def _complex(width: int, length: int) -> Tensor:
    angles = _angles(width, length)
    return torch.polar(torch.ones_like(angles), angles)


def _pairs(width: int, length: int) -> Tensor:
    angles = _angles(width, length)
    return torch.stack([angles.cos(), angles.sin()], -1)


def _halves(width: int, length: int) -> tuple[Tensor, Tensor]:
    angles = torch.cat([_angles(width, length)] * 2, -1)
    return angles.cos(), angles.sin()
