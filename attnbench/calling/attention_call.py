"""A callee called as a mechanism or a scoring function: canonical tensors in, its own out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.attention.masks import valid_lens_mask
from attnbench.calling.binding import Binding, Fill, Given, Mask, Part, part_of
from attnbench.calling.caches import drop_graphs
from attnbench.calling.refusing import refusals
from attnbench.calling.roles import SETTINGS, role_of
from attnbench.calling.styles import fold_mask, name_of, with_causality
from attnbench.errors import DtypeError, RefusalError, ShapeError


class Called(nn.Module):
    """A module that calls a callee as a binding says.

    Args:
        callee: a function or a module.
        binding: how it is called.
        keeps_graphs: whether tensors that a call leaves on the callee keep their graphs, as where
            nobody copies it.
    """

    def __init__(self, callee: Any, binding: Binding) -> None:
        super().__init__()
        self.callee, self.binding, self.keeps_graphs = callee, binding, False

    def _called(self, given: Mapping[str, Any], like: Tensor, masked: bool) -> Any:
        """What the callee gives; its refusals are raised as such."""
        with refusals(name_of(self.callee), masked=masked, on_cpu=like.device.type == "cpu"):
            places = [given[name] for name in given if name.isdigit()]
            return self.callee(*places, **{k: v for k, v in given.items() if not k.isdigit()})

    def _part(self, result: Any, where: tuple[Part, str]) -> Tensor:
        """A tensor of what a call gave.

        Raises:
            DtypeError, ShapeError: it is none, or has other dimensions than it had in a trial.
        """
        found: Any = part_of(result, where[0], self.callee)
        name = name_of(self.callee)
        if not isinstance(found, Tensor):
            kind = type(found).__name__
            raise DtypeError(f"{name} returned {kind} for its output, but should return a tensor.")
        if found.dim() != len(where[1]):
            raise ShapeError(f"{name} returned {tuple(found.shape)}, but should return {where[1]}.")
        return found


class Attention(Called):
    """A callee with the interface of a mechanism."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        return_weights: bool = False,
        **given: Any,
    ) -> Any:
        """The output ``(..., L, Ev)``, and the weights ``(..., L, S)`` on request."""
        if return_weights:
            given["return_weights"] = True
        output, weights = self._outcome(query, key, value, attn_mask, valid_lens, given)
        if self.binding.output is None:
            output = weights @ value
        elif self.binding.shape == "memory" and self.binding.pools:
            output = _held_to_pooling(output, weights, key, value)
        return (output, weights) if return_weights or self.binding.sums else output

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """What it gives for each query and key ``(..., L, S)``."""
        return self._outcome(query, key, key, None, None, {})[1]  # type: ignore[no-any-return]

    def _outcome(self, query: Tensor, key: Tensor, *more: Any) -> tuple[Any, Any]:
        result, frame = self.result(query, key, *more), Frame(query, key, self.binding)
        output, weights = self.binding.output, self.binding.weights
        found = (
            None if output is None else frame.unfolded(self._part(result, output), output[1]),
            None if weights is None else self._beside(result, frame, weights),
        )
        if not self.keeps_graphs:
            drop_graphs(self.callee)
        return found

    def _beside(self, result: Any, frame: Frame, where: tuple[Part, str]) -> Any:
        """What comes with an output, as it is where it has other dimensions than weights."""
        found: Any = part_of(result, where[0], self.callee)
        if isinstance(found, Tensor) and found.dim() == len(where[1]):
            return frame.unfolded(found, where[1])
        return found if self.binding.shape == "attention" else self._part(result, where)

    def result(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        lens: Tensor | None = None,
        given: Mapping[str, Any] = MappingProxyType({}),
    ) -> Any:
        """What the callee gives."""
        bound = self.binding
        own = {SETTINGS[name]: value for name, value in given.items() if name in SETTINGS}
        if not own.get("dropout") or not self.training:
            own.pop("dropout", None)
        own = {role: value for role, value in own.items() if value is not False}
        heads = getattr(self.callee, "num_heads", 0)
        heads = heads if isinstance(heads, int) else 0
        frame = Frame(query, key, bound, grouped="gqa" in own, heads=heads)
        if mask is not None and bound.one_mask and own.pop("causal", False):
            mask = with_causality(mask, query, key)
        masked = mask is not None or lens is not None or "causal" in own
        own |= {
            **dict.fromkeys(("query", "hidden"), frame.query(query)),
            **dict.fromkeys(("key", "memory"), frame.keys(key)),
            "value": frame.keys(value),
        }
        arguments = self._arguments(frame, own, frame.masks(mask, lens), query, key)
        if bound.prepare:
            getattr(self.callee, bound.prepare)(own["key"])
        return self._called(arguments, query, masked)

    def _arguments(
        self, frame: Frame, own: dict[str, Any], masks: dict[str, Any], query: Tensor, key: Tensor
    ) -> dict[str, Any]:
        """What each argument gets, of what a call gives to roles; some are left out."""
        values, found = self.binding.values, dict(masks)
        sizes = {**frame.sizes(self.callee), "E": query.shape[-1]}
        for name, role in self.binding.roles.items():
            if name in found:
                continue
            if role in own:
                scales = role in ("key_scale", "value_scale")
                by_head = name.endswith("descale")
                found[name] = frame.scale(own[role], key, by_head=by_head) if scales else own[role]
            elif isinstance(values.get(name), Fill):
                found[name] = values[name].tensor(sizes, query)
            elif isinstance(values.get(name), Given):
                found[name] = values[name].value(frame.items[0], self.binding.tokens, query)
            elif name in values:
                found[name] = values[name]
        return {name: found[name] for name in self.binding.roles if name in found}


class Scores(Attention):
    """A callee with the interface of a scoring function."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:  # type: ignore[override]
        """The scores ``(..., L, S)``."""
        return self.scores(query, key)


class Frame:
    """The sizes of one call, between the canonical axes and a callee's own.

    Args:
        query, key: canonical, ``(*lead, L, Eq)`` and ``(*lead, S, Ek)``.
        binding: how the callee is called.
        grouped: whether keys have fewer heads, so that a single leading size is that of heads.
        heads: for how many heads a mask is repeated; 0 where that is not known.
    """

    def __init__(
        self, query: Tensor, key: Tensor, binding: Binding, grouped: bool = False, heads: int = 0
    ) -> None:
        self.binding, self.grouped, self.heads = binding, grouped, heads
        self.lead, self.length, self.slots = query.shape[:-2], query.shape[-2], key.shape[-2]
        self.device, self.dtype = query.device, query.dtype
        self.by_head = "H" in binding.layout
        wide = (1,) * (2 - len(self.lead)) if self.by_head and len(self.lead) < 2 else ()
        lead = (*wide, *self.lead) if grouped else (*self.lead, *wide)
        self.items: tuple[int, ...]
        if self.by_head:
            self.items = (math.prod(lead[:-1]), lead[-1])
        else:
            self.items = (math.prod(self.lead) * (self.length if binding.one_query else 1),)

    def query(self, tensor: Tensor) -> Tensor:
        """A query in the callee's layout."""
        if self.binding.one_query:
            return arranged(tensor.reshape(-1, tensor.shape[-1]), "BE", self.binding.layout)
        flat = tensor.reshape(*self.items, *tensor.shape[-2:])
        return arranged(flat, "BHLE" if self.by_head else "BLE", self.binding.layout)

    def keys(self, tensor: Tensor) -> Tensor:
        """A key or value in the callee's layout."""
        if self.binding.one_query:
            shape = (*self.lead, self.length, *tensor.shape[-2:])
            flat = tensor.unsqueeze(-3).expand(shape).reshape(-1, *tensor.shape[-2:])
        elif self.by_head:  # grouped heads are fewer
            heads = tensor.shape[-3] if len(self.lead) > 1 or self.grouped else 1
            flat = tensor.reshape(self.items[0], heads, *tensor.shape[-2:])
        else:
            flat = tensor.reshape(*self.items, *tensor.shape[-2:])
        return arranged(flat, "BHSE" if self.by_head else "BSE", self.binding.memory)

    def sizes(self, callee: Any) -> dict[str, int]:
        """The sizes of the axes of a call."""
        heads = self.items[1] if self.by_head else heads_of(callee)
        count = self.items[0]
        own = {"B": count, "H": heads, "G": count * heads, "1": 1}
        return own | {"L": self.length, "S": self.slots}

    def masks(self, mask: Tensor | None, lens: Tensor | None) -> dict[str, Any]:
        """The masks that a call gets, by the names of its arguments.

        Raises:
            RefusalError: none of its masks can say so.
        """
        found: dict[str, Any] = {}
        forms = self.binding.masks
        if lens is not None:
            name = next((name for name, form in forms.items() if form.says == "lengths"), None)
            if name is None:
                mask = self._padded(mask, lens, found)
            else:
                found[name] = self._lengths(lens, forms[name])
        if mask is not None:
            name, found_mask = self._masked(
                mask, {n: f for n, f in forms.items() if n not in found}
            )
            found[name] = found_mask
        needed = {
            name: form
            for name, form in forms.items()
            if name not in found and self.binding.values.get(name) is not None
        }
        for name, form in needed.items():  # a call without a mask gets one that hides nothing
            found[name] = self.whole(form)
        return found

    def _masked(self, mask: Tensor, forms: Mapping[str, Mask]) -> tuple[str, Tensor]:
        """A mask in the first of the forms that can say it, and the name of its argument.

        What is two-dimensional is said of queries and keys, if it can be.
        """
        refused: list[str] = []
        for name, form in sorted(
            forms.items(), key=lambda each: each[1].by_key == (mask.dim() == 2)
        ):
            if form.says == "lengths":
                continue
            try:
                return name, self.mask(mask, form)
            except RefusalError as error:
                refused.append(str(error))
        raise RefusalError(refused[0] if refused else "takes no mask")

    def _padded(self, mask: Tensor | None, lens: Tensor, found: dict[str, Any]) -> Tensor | None:
        """Lengths as the mask of keys, beside that of a call; those by query are part of it."""
        keys = valid_lens_mask(lens, self.lead, self.length, self.slots)
        name = next((n for n, form in self.binding.masks.items() if form.by_key), None)
        if name is not None and keys.shape[-2] == 1:
            beside = mask is not None and mask.dtype != torch.bool
            own = floating(keys, self.dtype) if beside else keys
            found[name] = self.mask(own, self.binding.masks[name])
            return mask
        hidden = keys if mask is None else mask
        return hidden.masked_fill(~keys, False if hidden.dtype == torch.bool else -math.inf)

    def whole(self, form: Mask) -> Tensor:
        """A mask in that form which hides nothing."""
        if form.says == "lengths":
            lens = torch.full(self.lead[:1] or (1,), self.slots, device=self.device)
            return self._lengths(lens, form)
        return self.mask(torch.ones(1, self.slots, dtype=torch.bool, device=self.device), form)

    def mask(self, mask: Tensor, form: Mask) -> Tensor:
        """A canonical mask, boolean or added, in a form of the callee's."""
        shape = (*self.lead, self.length, self.slots)
        if form.axes.startswith(".."):
            mask = mask[..., :1, :] if form.by_key else mask
            return said(fold_mask(mask, self.lead, heads=self.grouped), form, self.dtype)
        if form.axes == "GLS" and mask.dim() > 2:
            if not self.heads:
                raise RefusalError("it has no num_heads to repeat a mask for")
            whole = said(mask, form, self.dtype).expand(shape).reshape(-1, *shape[-2:])
            return whole.repeat_interleave(self.heads, 0)
        if form.axes in ("LS", "GLS"):
            if any(size != 1 for size in mask.shape[:-2]):
                raise RefusalError("takes one mask (L, S) for all items only")
            return said(mask.reshape(mask.shape[-2:]).expand(shape[-2:]), form, self.dtype)
        if form.by_key and not self.binding.one_query:
            if mask.shape[-2] != 1 and not bool((mask == mask[..., :1, :]).all()):
                raise RefusalError("takes one row of a mask for all queries only")
            rows = mask[..., :1, :].expand(*self.lead, 1, self.slots).reshape(-1, self.slots)
            return said(arranged(rows, "BS", form.axes), form, self.dtype)
        whole = mask.expand(shape)
        if self.binding.one_query:
            return said(arranged(whole.reshape(-1, self.slots), "BS", form.axes), form, self.dtype)
        if self.by_head:
            flat = whole.reshape(*self.items, *shape[-2:])
            return said(arranged(flat, "BHLS", form.axes), form, self.dtype)
        return said(arranged(whole.reshape(-1, *shape[-2:]), "BLS", form.axes), form, self.dtype)

    def _lengths(self, lens: Tensor, form: Mask) -> Tensor:
        lead = self.lead or (1,)
        own = lens.reshape(lens.shape[0], *[1] * (len(lead) - 1), -1)
        rows = own.expand(*lead, own.shape[-1]).reshape(-1, own.shape[-1])
        if self.binding.one_query:
            return rows.expand(-1, self.length).reshape(-1)
        if lens.dim() == 2 and "L" not in form.axes:
            raise RefusalError("takes one length an item, (B,)")
        return rows if lens.dim() == 2 else rows[:, 0]

    def scale(self, scale: Any, key: Tensor, *, by_head: bool) -> Any:
        """A scale of stored keys or values: 0-dimensional, by token, or ``(B, H)``.

        Raises:
            RefusalError: it is by token, which ``(B, H)`` cannot say.
        """
        if not isinstance(scale, Tensor) or not (scale.dim() or by_head):
            return scale
        heads = key.shape[-3] if len(self.lead) > 1 or self.grouped else 1
        wide = scale.expand(*key.shape[:-1], 1).reshape(self.items[0], heads, -1, 1)
        if not by_head:
            return arranged(wide, "BHSE", self.binding.memory)
        if not bool((wide == wide[..., :1, :]).all()):
            raise RefusalError("its scales are (B, H), and take none by token")
        return wide[..., 0, 0].float()

    def unfolded(self, tensor: Tensor, axes: str) -> Tensor:
        """An output or weights of the callee, in canonical axes; as it is if it has other sizes."""
        last = next((letter for letter in "SE" if letter in axes), "")
        rest = [letter for letter in "BGHL" if letter in axes]
        flat = arranged(tensor, axes, "".join([*rest, last]))
        if "H" in axes and not self.by_head:  # of its own heads: the mean
            flat = flat.mean(rest.index("H"))
        shape = (*self.lead, self.length, *flat.shape[flat.dim() - len(last) :])
        return flat.reshape(shape) if flat.numel() == math.prod(shape) else tensor


def heads_of(callee: Any, role: str = "heads") -> int:
    """The number of heads that a module says it has; 1 where it says none."""
    return number_of(callee, role) or number_of(callee, "heads") or 1


def number_of(callee: Any, role: str) -> int | None:
    """A whole number that a module, or a config that it keeps, has under a name of this role."""
    return next(iter(numbers_of(callee, role).values()), None)


def numbers_of(callee: Any, role: str) -> dict[str, int]:
    """The whole numbers of that role, by name."""
    named = dict(vars(callee)) if isinstance(callee, nn.Module) else {}
    for name, value in [*named.items()]:
        if role_of(name, "constructor") == "config" and hasattr(value, "__dict__"):
            read = {key: each[0] for key, each in vars(value).get("_asked", {}).items()}
            named = {**named, **vars(value), **read}
    return {
        name: value
        for name, value in named.items()
        if type(value) is int and role_of(name, "constructor") == role
    }


def said(mask: Tensor, form: Mask, dtype: torch.dtype) -> Tensor:
    """A canonical mask as its form says it; one that is made of numbers has this dtype."""
    says = form.says
    if says == "added" or (form.floating and mask.dtype != torch.bool):
        return floating(mask, dtype)
    if mask.dtype != torch.bool:
        raise RefusalError("takes no floating masks")
    if says in ("shows", "hides"):
        return mask if says == "shows" else ~mask
    return (mask if says == "ones" else ~mask).to(dtype)


def floating(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask that is added to scores of a dtype; as it is if it has numbers already."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill(~mask, -math.inf)


def arranged(tensor: Tensor, axes: str, wanted: str) -> Tensor:
    """A tensor with its axes in another order; axes of size one may come or go."""
    if axes == wanted:
        return tensor
    kept = [place for place, letter in enumerate(axes) if letter != "1"]
    letters = [axes[place] for place in kept]
    tensor = tensor.reshape([tensor.shape[place] for place in kept])
    own = [letter for letter in wanted if letter in letters]
    for letter in [letter for letter in letters if letter not in own]:
        tensor = tensor.squeeze(letters.index(letter))  # of one item
        letters.remove(letter)
    tensor = tensor.permute([letters.index(letter) for letter in own])
    for place, letter in enumerate(wanted):
        if letter not in letters:
            tensor = tensor.unsqueeze(place)
    return tensor


def _held_to_pooling(context: Tensor, weights: Tensor, memory: Tensor, value: Tensor) -> Tensor:
    """Weights times value; where the callee's own context is not weights times memory, it shows."""
    output, own = weights @ value, weights @ memory
    if context.shape != own.shape:
        return output
    size = weights.abs() @ memory.abs()
    eps = torch.finfo(own.dtype).eps
    return output + torch.where((context - own).abs() <= 64 * eps * size, 0.0, context - own).sum(
        -1, keepdim=True
    )
