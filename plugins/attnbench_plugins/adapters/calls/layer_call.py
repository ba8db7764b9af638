"""A callee called as a layer: hidden states ``(B, L, E)`` in and out, whatever its own layout."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attnbench.errors import RefusalError
from attnbench.styles import name_of, role_of
from attnbench_plugins.adapters.binding import FIRST, Fill, Given, Mask
from attnbench_plugins.adapters.calls.attention_call import Called
from attnbench_plugins.adapters.calls.caches import Held, drop_graphs
from attnbench_plugins.adapters.calls.frame import (
    arranged,
    folded,
    heads_of,
    number_of,
    numbers_of,
    said,
)


class Layer(Called):
    """A callee with the interface of a layer."""

    def forward(
        self,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: Held | None = None,
        source: Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Output ``(B, L, E)``; the cache is updated in place, and extras are keywords."""
        if "B" in self.binding.layout:
            return self._outcome(hidden, padding_mask, cache, source, extras)
        masks = [None] * len(hidden) if padding_mask is None else torch.split(padding_mask, 1)
        rows = [
            self._outcome(one, real, cache, source, extras)
            for one, real in zip(torch.split(hidden, 1), masks, strict=True)
        ]
        return torch.cat(rows)

    def _outcome(
        self, hidden: Tensor, real: Tensor | None, cache: Held | None, *sides: Any
    ) -> Tensor:
        if cache is None:
            result = self.result(hidden, real, cache, *sides)
            if not self.keeps_graphs:
                drop_graphs(self.callee)
        else:
            with cache.installed():
                result = self.result(hidden, real, cache, *sides)
            cache.take(result)
            cache.length += hidden.shape[1]
        where = self.binding.output or (None, self.binding.layout)
        output, width = self._part(result, where), hidden.shape[-1]
        output = arranged(output, where[1], "BLE" if hidden.dim() == 3 else "BYXE")
        if len(where[1].replace("1", "")) < len(self.binding.layout.replace("1", "")):
            output = output.expand(*hidden.shape[:-1], -1)  # of all tokens: the same for each
        if where[0] != FIRST:
            output = folded(output, width)
        return output

    def result(
        self,
        hidden: Tensor,
        real: Tensor | None = None,
        cache: Held | None = None,
        source: Tensor | None = None,
        extras: Mapping[str, Tensor] | None = None,
    ) -> Any:
        """What the callee gives."""
        bound, past = self.binding, 0 if cache is None else cache.length
        if bound.tokens and hidden.shape[1:-1].numel() != bound.tokens:
            raise RefusalError(f"{name_of(self.callee)} takes {bound.tokens} tokens only")
        own = "BLE" if hidden.dim() == 3 else "BYXE"
        given: dict[str, Any] = dict(extras or {})
        masks = self._masks(real, hidden, past)
        for name, role in bound.roles.items():
            if name in masks:
                given[name] = masks[name]
            elif role == "hidden":
                given[name] = self._laid_out(hidden, own, bound.layout)
            elif role == "memory":
                given[name] = None if source is None else self._memory(source)
            elif role == "cache" and cache is not None:
                given[name] = cache.value
            elif self._is_given(name, role, cache is not None):
                of_source = role in _OF_SOURCE or isinstance(bound.values.get(name), Given)
                slots = source.shape[1] if source is not None and of_source else None
                given[name] = self._value(name, role, hidden, past, slots)
        if real is not None:  # positions are counted from the first real token
            where = (real.cumsum(-1) - 1).clamp_min(0)[:, past:]
            counted = [n for n, role in bound.roles.items() if role == "positions"]
            given |= {name: where for name in counted if bound.values.get(name) == "BL"}
        return self._called(given, hidden, bool(masks))

    def _memory(self, source: Tensor) -> Tensor:
        """A second sequence in the callee's layout, and of as many features as it takes."""
        wide, width = self.binding.wide, source.shape[-1]
        if wide not in (0, width):
            source = source[..., torch.arange(wide, device=source.device) % width]
        return self._laid_out(source, "BSE", self.binding.memory)

    def _laid_out(self, tensor: Tensor, axes: str, wanted: str) -> Tensor:
        """A tensor in the callee's layout."""
        found = arranged(tensor, axes, wanted)
        return found.contiguous() if self.binding.dense else found

    def _is_given(self, name: str, role: str, cached: bool) -> bool:
        """Whether an argument is passed; without a cache, a default says that there is none."""
        if role == "cached" or name not in self.binding.values:
            return cached and role in ("cached", "start", "slots")
        return True

    def _value(self, name: str, role: str, hidden: Tensor, past: int, slots: int | None) -> Any:
        """What an argument gets that is neither hidden states nor a mask."""
        constant = self.binding.values.get(name)
        items, count, width = hidden.shape[0], hidden.shape[1], hidden.shape[-1]
        if isinstance(constant, Table):
            return constant.rows(self.callee, past, count, hidden)
        if isinstance(constant, Fill | Given | tuple):
            sizes = {"B": items, "L": count, "S": slots or past + count, "E": width, "1": 1}
            sizes["R"] = 2 * sizes["S"] - 1
            sizes |= {"H": heads_of(self.callee, "kv_heads"), "D": head_width(self.callee, width)}
            return self._constant(constant, sizes, hidden)
        places = torch.arange(past, past + count, device=hidden.device)
        if role == "positions":
            return places.expand(items, -1) if constant == "BL" else places
        if role == "slots":
            return places
        if role == "bounds":
            return torch.tensor([0, count], dtype=torch.int32, device=hidden.device)
        if role in _RECTANGLE:
            rows = next(n for n in range(math.isqrt(count) or 1, 0, -1) if count % n == 0)
            return {"rows": rows, "columns": count // rows}.get(role, (rows, count // rows))
        return past if role == "start" else constant

    def _masks(self, real: Tensor | None, hidden: Tensor, past: int) -> dict[str, Tensor]:
        forms = self.binding.masks
        if real is None:
            if not any(self.binding.values.get(name) is not None for name in forms):
                return {}
            whole = (hidden.shape[0], past + hidden.shape[1])
            real = torch.ones(whole, dtype=torch.bool, device=hidden.device)
        elif not forms:
            raise RefusalError(f"{name_of(self.callee)} takes no padding mask")
        name, form = next(iter(forms.items()))
        return {name: padding(real, form, hidden, heads_of(self.callee))}


_RECTANGLE = ("grid", "rows", "columns")
_OF_SOURCE = ("memory_mask", "memory_padding")


def padding(real: Tensor, form: Mask, hidden: Tensor, heads: int = 1) -> Tensor:
    """A mask of real tokens ``(B, S)`` in the form that a layer takes."""
    sizes = {"B": real.shape[0], "H": heads, "L": hidden.shape[1], "S": real.shape[1], "1": 1}
    wide = arranged(real, "BS", form.axes).expand([sizes[letter] for letter in form.axes])
    if form.says == "added":
        low = max(torch.finfo(hidden.dtype).min, torch.finfo(torch.float32).min)
        return hidden.new_zeros(wide.shape).masked_fill(~wide, low)
    return said(wide, form, torch.long)


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
