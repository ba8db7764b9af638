"""The adapter for torch's FlexAttention with a user's score_mod and mask_mod."""

from __future__ import annotations

import contextlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec, RefusalError
from attnbench.errors import StyleError
from attnbench.testing import (
    adapted_spec,
    fold_heads,
    fold_mask_heads,
    scaled_dot_rows,
    unfold_heads,
)

_MODULE = "torch.nn.attention.flex_attention"
_HIDES = "its mask_mod hides keys of its own, of which no mask that is given tells"
_UNKNOWN_KEYS = (
    "empty_rows_give_zeros",
    "empty_rows_have_finite_gradients",
    "every_attendable_key_matters",
    "output_lies_within_values",
    "weights_sum_to_one",
)


def flex(
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    **fields: Any,
) -> MechanismSpec:
    """Make a spec of FlexAttention with a ``score_mod``, a ``mask_mod``, or both.

    The mask of a call is combined with them. With either, positions are assumed to be absolute and
    parameters to be per head; pass ``conventions={"positions": "relative", "per_head": False}`` to
    promise more. On a CPU FlexAttention has no backward pass. It runs without its compiler, which
    takes half a second for each new shape, unless the caller is compiled.

    Args:
        score_mod: ``score_mod(score, batch, head, q_idx, kv_idx)``, as ``flex_attention`` takes it.
        mask_mod: ``mask_mod(batch, head, q_idx, kv_idx)``, True = may attend.
        fields: fields of the spec, which override the adapter's.

    Raises:
        StyleError: one is not callable, or takes another number of arguments.
    """
    for what, mod, count in (("score_mod", score_mod, 5), ("mask_mod", mask_mod, 4)):
        if mod is not None:
            _hold(what, mod, count)
    plain = score_mod is None and mask_mod is None
    exempt = {} if mask_mod is None else dict.fromkeys(_UNKNOWN_KEYS, _HIDES)
    known = {
        "name": "flex" if plain else getattr(score_mod or mask_mod, "__name__", "flex"),
        "make": lambda *sizes: _Flex(score_mod, mask_mod),
        "formula": "softmax(score_mod(q·k / √E)) v",
        "equal_sizes": True,
        "reference": scaled_dot_rows if plain else None,
        "accepts": ("scale", "enable_gqa"),
        "laws": ("pools_values",),
        "exempt": exempt,
        "conventions": {
            "hidden_slots": "finite",
            "gradients": torch.accelerator.is_available(),
            **({} if plain else {"positions": "absolute", "per_head": True}),
        },
    }
    return adapted_spec("flex", score_mod or mask_mod, known, fields)


def flex_of(mod: Any, **fields: Any) -> MechanismSpec:
    """A spec of what ``--as flex`` names: a score_mod, a mask_mod, or ``flex_attention`` itself."""
    if getattr(mod, "__name__", "") == "flex_attention" and mod.__module__ == _MODULE:
        return flex(**fields)
    try:
        count = len(inspect.signature(mod).parameters)
    except (TypeError, ValueError):
        count = 0
    name = getattr(mod, "__name__", type(mod).__name__)
    if count not in (4, 5) or "query" in inspect.signature(mod).parameters:
        raise StyleError(
            f"{name} cannot be called as flex: it takes {count} arguments, but a score_mod "
            "takes score, batch, head, q_idx, kv_idx, and a mask_mod the last four."
        )
    return flex(mod, **fields) if count == 5 else flex(None, mod, **fields)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Run FlexAttention without its compiler; the values are the same."""
    if torch.compiler.is_compiling():
        yield
        return
    with torch.compiler.set_stance("force_eager"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # it warns that it is not compiled
        yield


def _hold(what: str, mod: object, count: int) -> None:
    if not callable(mod):
        raise StyleError(f"{what} is {mod!r}, which is not callable.")
    try:
        given = len(inspect.signature(mod).parameters)
    except (TypeError, ValueError):
        return
    if given != count:
        names = ("batch", "head", "q_idx", "kv_idx") if count == 4 else (
            "score", "batch", "head", "q_idx", "kv_idx")  # fmt: skip
        raise StyleError(f"{what} takes {given} arguments, but should take {', '.join(names)}.")


class _Flex(nn.Module):
    """FlexAttention of ``(B, H, L, E)`` with a score_mod and a mask_mod."""

    def __init__(self, score_mod: Any, mask_mod: Any) -> None:
        super().__init__()
        self.score_mod, self.mask_mod = score_mod, mask_mod

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """The output ``(..., L, Ev)``."""
        from torch.nn.attention.flex_attention import flex_attention  # brings the compiler: 1 s

        lead = tuple(query.shape[:-2])
        query, key, value = (fold_heads(t, heads=enable_gqa) for t in (query, key, value))
        if attn_mask is not None:
            shape = (*query.shape[:-1], key.shape[-2])
            attn_mask = fold_mask_heads(attn_mask, lead, heads=enable_gqa).expand(shape)
        with uncompiled():
            try:
                output = flex_attention(
                    query,
                    key,
                    value,
                    score_mod=self.changed(attn_mask),
                    scale=scale,
                    enable_gqa=enable_gqa,
                )
            except NotImplementedError as error:
                raise RefusalError(f"FlexAttention refuses it: {error}") from error
        assert isinstance(output, Tensor)
        return unfold_heads(output, lead)

    def changed(self, mask: Tensor | None) -> Callable[..., Tensor] | None:
        """All changes of scores, including the mask, as one score_mod; ``None`` without any."""
        score_mod, mask_mod = self.score_mod, self.mask_mod
        if mask is None and mask_mod is None:
            return score_mod  # type: ignore[no-any-return]

        def change(score: Tensor, b: Tensor, h: Tensor, i: Tensor, s: Tensor) -> Tensor:
            if score_mod is not None:
                score = score_mod(score, b, h, i, s)
            if mask is not None and mask.dtype != torch.bool:
                score = score + mask[b, h, i, s]
            elif mask is not None:
                score = torch.where(mask[b, h, i, s], score, float("-inf"))
            if mask_mod is not None:
                score = torch.where(mask_mod(b, h, i, s), score, float("-inf"))
            return score

        return change
