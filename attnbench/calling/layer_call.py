"""A callee called as a layer: hidden states ``(B, L, E)`` in and out, whatever its own layout."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.attention_call import arranged, heads_of, number_of, numbers_of
from attnbench.calling.binding import Binding, Fill, Given, Mask, part_of
from attnbench.calling.roles import role_of
from attnbench.calling.styles.callee import name_of, refusals
from attnbench.calling.styles.held_caches import Held, drop_graphs
from attnbench.errors import DtypeError, RefusalError


@dataclass(frozen=True)
class Table:
    """Rotary angles for the tokens of a call, by a function of the width of a head and a length.

    Args:
        function: ``function(width, length)`` gives a tensor or a tuple of them.
        part: which of a tuple it is; ``None`` for all that it gives.
        lead: whether it gets an axis of size one in front.
        named: under which name a module has the width; by default that of a head.
    """

    function: Callable[[int, int], Any]
    part: int | None = None
    lead: bool = False
    named: str = ""

    def rows(self, width: int, start: int, count: int, like: Tensor) -> Any:
        """The angles of ``count`` tokens from ``start`` on."""
        made = self.function(width, start + count)
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


class Layer(nn.Module):
    """A callee with the interface of a layer.

    Args:
        module: a module, or a function.
        binding: how it is called.
    """

    def __init__(self, module: Any, binding: Binding) -> None:
        super().__init__()
        self.module, self.binding = module, binding

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
            return self._called(hidden, padding_mask, cache, source, extras)
        rows = [self._called(one, None, cache, source, extras) for one in torch.split(hidden, 1)]
        return torch.cat(rows)

    def _called(
        self,
        hidden: Tensor,
        real: Tensor | None,
        cache: Held | None,
        source: Tensor | None,
        extras: Mapping[str, Tensor] | None,
    ) -> Tensor:
        result = self.result(hidden, real, cache, source, extras)
        if cache is None:
            drop_graphs(self.module)
        else:
            cache.take(result, returned=True)
            cache.length += hidden.shape[1]
        where, axes = self.binding.output or (None, self.binding.layout)
        output: Any = part_of(result, where, self.module)
        if not isinstance(output, Tensor):
            raise DtypeError(
                f"{name_of(self.module)} returned {type(output).__name__}, but should return a "
                "tensor."
            )
        output = arranged(output, axes, "BLE" if hidden.dim() == 3 else "BYXE")
        width = hidden.shape[-1]
        if output.shape[-1] != width:  # as of logits: parts of the width, with signs
            output = nn.functional.pad(output, (0, -output.shape[-1] % width))
            output = output.reshape(*output.shape[:-1], -1, width)
            signs = 1.0 + torch.arange(output.shape[-2], device=output.device)
            output = (output * signs[:, None].to(output)).sum(-2)
        return output  # type: ignore[no-any-return]

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
        own = "BLE" if hidden.dim() == 3 else "BYXE"
        given: dict[str, Any] = dict(extras or {})
        masks = self._masks(real, hidden, past)
        for name, role in bound.roles.items():
            if name in masks:
                given[name] = masks[name]
            elif role == "hidden":
                given[name] = arranged(hidden, own, bound.layout)
            elif role == "memory":
                given[name] = None if source is None else arranged(source, "BSE", bound.memory)
            elif role == "cache" and cache is not None:
                given[name] = cache.value
            else:
                given[name] = self._value(name, role, hidden, past)
        on_cpu = hidden.device.type == "cpu"
        with refusals(name_of(self.module), masked=bool(masks), on_cpu=on_cpu):
            return self.module(**given)

    def _value(self, name: str, role: str, hidden: Tensor, past: int) -> Any:
        """What an argument gets that is neither hidden states nor a mask."""
        bound, count = self.binding, hidden.shape[1]
        constant = bound.values.get(name)
        if isinstance(constant, Given):
            return constant.value(hidden.shape[0], count, hidden)
        slots = torch.arange(past, past + count, device=hidden.device)
        if isinstance(constant, Table):
            width = numbers_of(self.module, "head_dim").get(constant.named)
            width = width or head_width(self.module, hidden.shape[-1])
            return constant.rows(width, past, count, hidden)
        if isinstance(constant, Fill | tuple):
            width, heads = hidden.shape[-1], heads_of(self.module, "kv_heads")
            sizes = {"B": hidden.shape[0], "L": count, "S": past + count, "E": width, "1": 1}
            sizes |= {"H": heads, "D": head_width(self.module, width)}
            if isinstance(constant, Fill):
                return constant.tensor(sizes, hidden)
            return tuple(each.tensor(sizes, hidden) for each in constant)
        if role == "positions":
            return slots.expand(hidden.shape[0], -1) if constant == "BL" else slots
        if role == "slots":
            return slots
        return past if role == "start" else constant

    def _masks(self, real: Tensor | None, hidden: Tensor, past: int) -> dict[str, Tensor]:
        forms = self.binding.masks
        if real is None:
            needed = [name for name in forms if self.binding.values.get(name) is not None]
            if not needed:
                return {}
            whole = (hidden.shape[0], past + hidden.shape[1])
            real = torch.ones(whole, dtype=torch.bool, device=hidden.device)
        elif not forms:
            raise RefusalError(f"{name_of(self.module)} takes no padding mask")
        name, form = next(iter(forms.items()))
        return {name: padding(real, form, hidden, heads_of(self.module))}


def padding(real: Tensor, form: Mask, hidden: Tensor, heads: int = 1) -> Tensor:
    """A mask of real tokens ``(B, S)`` in the form that a layer takes."""
    sizes = {"B": real.shape[0], "H": heads, "L": hidden.shape[1], "S": real.shape[1], "1": 1}
    wide = arranged(real, "BS", form.axes).expand([sizes[letter] for letter in form.axes])
    if form.says == "added":
        low = torch.finfo(hidden.dtype).min
        return hidden.new_zeros(wide.shape).masked_fill(~wide, low)
    if form.says in ("shows", "hides"):
        return wide if form.says == "shows" else ~wide
    return (wide if form.says == "ones" else ~wide).long()


def tables_of(function: Any, callee: Any) -> list[Table]:
    """Rotary angles: by functions of the callee's own file that make them, and by plain ones."""
    module = inspect.getmodule(function)
    found: list[Table] = []
    for name, made in vars(module).items() if module is not None else ():
        looks = ("rope", "rotary", "freq", "cos", "angles")
        if not inspect.isfunction(made) or not any(part in name.lower() for part in looks):
            continue
        table = _table(made)
        if table is not None:
            found += [Table(table), Table(table, 0), Table(table, 1)]
    found += [Table(_complex), Table(_pairs), Table(_halves, 0), Table(_halves, 1), Table(_halves)]
    names = [*numbers_of(callee, "head_dim")][1:]
    return [
        replace(table, lead=lead, named=name)
        for name in ("", *names)
        for lead in (False, True)
        for table in found
    ]


def _table(function: Callable[..., Any]) -> Callable[[int, int], Any] | None:
    """A function that makes angles, as one of width and length; ``None`` if it asks for more."""
    places: dict[str, str] = {}
    for name, parameter in inspect.signature(function).parameters.items():
        role = role_of(name, "constructor")
        if role in ("width", "head_dim"):
            places[name] = "width"
        elif role == "length" or name in ("end", "seq_len", "length", "n", "t", "max_pos"):
            places[name] = "length"
        elif parameter.default is parameter.empty:
            return None
    if sorted(places.values()) != ["length", "width"]:
        return None

    def made(width: int, length: int) -> Any:
        sizes = {"width": width, "length": length}
        return function(**{name: sizes[what] for name, what in places.items()})

    return made


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
