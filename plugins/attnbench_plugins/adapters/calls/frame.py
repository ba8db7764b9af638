"""The sizes and axes of one call, between the canonical ones and a callee's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import RefusalError
from attnbench.styles import fold_mask_heads, role_of, valid_lens_mask
from attnbench_plugins.adapters.binding import Binding, Mask


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
            flat = flat.contiguous()  # of one item, repeating is no copy, and no view can be taken
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
        own = {"B": count, "H": heads, "G": count * heads, "1": 1, "2": 2}
        own["R"] = 2 * self.slots - 1
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
            return said(fold_mask_heads(mask, self.lead, heads=self.grouped), form, self.dtype)
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
            return said(arranged(self._rows(mask), "BS", form.axes), form, self.dtype)
        whole = mask.expand(shape)
        if self.binding.one_query:
            return said(arranged(whole.reshape(-1, self.slots), "BS", form.axes), form, self.dtype)
        if self.by_head:
            flat = whole.reshape(*self.items, *shape[-2:])
            return said(arranged(flat, "BHLS", form.axes), form, self.dtype)
        return said(arranged(whole.reshape(-1, *shape[-2:]), "BLS", form.axes), form, self.dtype)

    def _rows(self, mask: Tensor) -> Tensor:
        """The row ``(B, S)`` of a mask that is the same for all queries and heads of an item."""
        if mask.shape[-2] != 1 and not bool((mask == mask[..., :1, :]).all()):
            raise RefusalError("takes one row of a mask for all queries only")
        rows = mask[..., :1, :].expand(*self.lead, 1, self.slots).reshape(*self.items, self.slots)
        if not self.by_head:
            return rows
        if not bool((rows == rows[:, :1]).all()):
            raise RefusalError("takes one mask for all heads of an item only")
        return rows[:, 0]

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


def folded(output: Tensor, width: int) -> Tensor:
    """An output with other features, as logits, folded to a width: the sum of its parts, signed."""
    if output.shape[-1] == width:
        return output
    output = nn.functional.pad(output, (0, -output.shape[-1] % width))
    output = output.reshape(*output.shape[:-1], -1, width)
    signs = 1.0 + torch.arange(output.shape[-2], device=output.device)
    return (output * signs[:, None].to(output)).sum(-2)


def arranged(tensor: Tensor, axes: str, wanted: str) -> Tensor:
    """A tensor with its axes in another order; axes of size one may come or go."""
    if axes == wanted:
        return tensor
    kept = [place for place, letter in enumerate(axes) if letter != "1"]
    letters = [axes[place] for place in kept]
    if len(kept) < len(axes):  # a view of all axes is one more, whose gradient has other strides
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
