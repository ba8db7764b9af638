"""Adapters of functions of query, key and value: torch's and flash-attention's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.specs import MechanismSpec
from attnbench.subject.result_form import output_and_more
from attnbench.subject.styles.callee import (
    AdaptedSpec,
    Callee,
    Maker,
    fold,
    fold_mask,
    spec_of,
    unfold,
)
from attnbench.subject.styles.fitting import fitted
from attnbench.subject.styles.renaming import renames
from attnbench.subject.styles.scaled_dot_floats import scaled_dot_rows
from attnbench.subject.styles.signature import Keywords
from attnbench.subject.styles.turned_masks import with_causality

__all__ = ["flash", "other_layout", "sdpa"]

_OPTIONS = ("window_size", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale", "head_offset")
FORMULA = "softmax(q·k / √E) v"
_SECOND = {
    "weights": ", and the weights are the second",
    "lse": ", and the log-sum-exp of the scores is the second",
    "more": "",
}


@renames
def sdpa(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a function like ``torch.nn.functional.scaled_dot_product_attention``.

    The function gets ``(B, H, L, E)``, with other leading sizes folded, and those keywords that its
    signature has. ``is_causal`` is aligned to the top left, as torch documents it; if the function
    does not accept a mask together with it, both are passed as one mask. Dropout is used only in
    training.

    Args:
        function: ``function(query, key, value, ...)``, or a module with such a forward.
        fields: fields of the spec, which override the adapter's; conventions and exemptions are
            added to its own. Pass ``reference=None`` if it is not scaled dot-product attention.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    keywords = fitted(function, "sdpa")
    conventions: dict[str, Any] = {"causal": "top_left"}
    if function is torch.nn.functional.scaled_dot_product_attention:
        conventions["hidden_slots"] = "finite"  # 0 times NaN is NaN, as documented
    one_mask = _takes_one_mask(function, keywords)
    return _spec("sdpa", function, keywords, fields, conventions, one_mask=one_mask)


@renames
def flash(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """Make a spec of a function of ``(B, L, H, E)``, like flash-attention's.

    The function gets those keywords that its signature has. Causality is aligned to the bottom
    right, and a row without keys gives zeros, as flash-attention documents since 2.1. Grouped heads
    are used if a small call with them succeeds.

    Args:
        function: ``function(q, k, v, ...)``, perhaps with ``causal=False``, or a module with such a
            forward.
        fields: fields of the spec, as for :func:`sdpa`.

    Raises:
        StyleError: ``function`` is not callable, or takes other arguments.
    """
    return _spec("flash", function, fitted(function, "flash"), fields, {})


def _spec(
    style: str,
    function: Callable[..., Any],
    keywords: Keywords,
    fields: dict[str, Any],
    conventions: dict[str, Any],
    **settings: Any,
) -> MechanismSpec:
    make = Maker(_Function, function, keywords, style=style, **settings)
    flags = ("is_causal", "dropout_p", "scale", "enable_gqa", *_OPTIONS)
    accepts = [flag for flag in flags if flag in keywords]
    notes: tuple[str, ...] = ()
    if _sample(make) is not None and _sample(make, dropout_p=0.1) is None:
        accepts = [flag for flag in accepts if flag != "dropout_p"]  # it takes a module there
    if style == "flash" and _takes_groups(make):
        accepts.append("enable_gqa")
    second = _second(make)
    returns = ("output", "lse") if second == "lse" else ("output",)
    if second is not None:
        accepts += ["return_weights"] if second == "weights" else []
        notes = (f"its output is the first of what it returns{_SECOND[second]}",)
    if second == "lse":
        make = Maker(_Function, function, keywords, style=style, log_sums=True, **settings)
    if "attn_mask" not in keywords:
        conventions["masks"] = ()
    known = {
        "make": make,
        "formula": FORMULA,
        "equal_sizes": True,
        "sizes": _one_head_size if style == "flash" else None,
        "reference": scaled_dot_rows,
        "accepts": tuple(accepts),
        "returns": returns,
        "laws": ("pools_values", *(("splits_merge",) if second == "lse" else ())),
        "conventions": conventions,
    }
    return spec_of(style, function, known, fields, notes)


def _sample(make: Maker, heads: int = 2, **given: Any) -> Any:
    """What it returns for a small call, with 5 keys and 3 queries; ``None`` if it raises."""
    query, key = torch.zeros(1, heads, 3, 4), torch.zeros(1, 2, 5, 4)
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return make(4, 4, 4).train()(query, key, key, **given)
    except Exception:  # whatever it raises, it is the checks that tell it
        return None


def _second(make: Maker) -> str | None:
    """What comes with the output: ``weights``, ``lse``, ``more``; ``None`` if nothing is known."""
    found = _sample(make, return_weights=True)
    if found is None or found[1] is None:
        return None
    shape = tuple(getattr(found[1], "shape", ()))
    if shape == (1, 2, 3) and not bool(found[1].any()):
        return "more"  # of 5 scores of 0 the log-sum is not 0, but the largest is
    return {(1, 2, 3, 5): "weights", (1, 2, 3): "lse"}.get(shape, "more")


def other_layout(spec: object) -> str | None:
    """The style that fits the layout of a function which was adapted with the other's.

    Only calls show the layout: one in its own is wrong, and one in the other is right.

    Args:
        spec: any spec.

    Returns:
        ``"flash"`` or ``"sdpa"``, or ``None`` where both calls are right, or none is.
    """
    if not isinstance(spec, AdaptedSpec) or spec.style not in ("sdpa", "flash"):
        return None
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, n, 8, generator=generator) for n in (4, 5, 5))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value)

    def right(style: str) -> bool:
        keywords = fitted(spec.callee, spec.style)
        module = _Function(copy.deepcopy(spec.callee), keywords, style=style)
        try:
            with torch.no_grad():
                got = module(query, key, value)
        except Exception:  # a function may raise anything where sizes do not fit
            return False
        return got.shape == expected.shape and torch.allclose(got, expected, 1e-3, 1e-3)

    found = [style for style in ("sdpa", "flash") if right(style)]
    return found[0] if len(found) == 1 and found != [spec.style] else None


def _takes_one_mask(function: Callable[..., Any], keywords: Keywords) -> bool:
    """Whether it raises if given both a mask and ``is_causal``, as torch's function does."""
    if "attn_mask" not in keywords or "is_causal" not in keywords:
        return False
    mask, tensor = torch.ones(2, 2, dtype=torch.bool), torch.zeros(1, 1, 2, 2)
    value = torch.zeros(1, 1, 2, 3)  # of a size for which torch raises
    both = keywords.spelt({"attn_mask": mask, "is_causal": True})
    try:
        function(tensor, tensor, value, **both)
    except Exception:  # whatever it raises, it does not take both
        return True
    return False


def _takes_groups(make: Maker) -> bool:
    """Whether a call with two key heads for four query heads succeeds; one broadcasts anywhere."""
    found = _sample(make, heads=4, enable_gqa=True)
    return isinstance(found, Tensor) and tuple(found.shape) == (1, 4, 3, 4)


def _one_head_size(sizes: Any) -> Any:
    return sizes.replace(value_size=sizes.query_size)


class _Function(Callee):
    """A function of ``(B, H, L, E)`` with torch's keywords, or of ``(B, L, H, E)``."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        enable_gqa: bool = False,
        return_weights: bool = False,
        **given: Any,
    ) -> Any:
        """The output ``(..., L, Ev)``, and the weights ``(..., L, S)`` on request."""
        lead, turned = tuple(query.shape[:-2]), self.settings["style"] == "flash"
        if attn_mask is not None:
            if is_causal and self.settings.get("one_mask"):
                attn_mask, is_causal = with_causality(attn_mask, query, key), False
            given["attn_mask"] = fold_mask(attn_mask, lead, heads=enable_gqa)
        if is_causal:
            given["is_causal"] = True
        if dropout_p and self.training:
            given["dropout_p"] = dropout_p
        if enable_gqa and not turned:
            given["enable_gqa"] = True
        if return_weights and "return_weights" in self.keywords:
            given["return_weights"] = True
        for name, tensor in (("k_scale", key), ("v_scale", value)):
            scale = given.get(name)
            if isinstance(scale, Tensor) and scale.dim():
                scale = fold(scale.expand(*tensor.shape[:-1], 1), heads=enable_gqa)
                given[name] = scale.transpose(1, 2) if turned else scale
        tensors = [fold(tensor, heads=enable_gqa) for tensor in (query, key, value)]
        tensors = [tensor.transpose(1, 2) for tensor in tensors] if turned else tensors
        output, second = output_and_more(self.call(*tensors, **given))
        output = output.transpose(1, 2) if turned and isinstance(output, Tensor) else output
        output = unfold(output, lead)
        if self.settings.get("log_sums"):
            folded = isinstance(second, Tensor) and second.dim() == 3
            return output, unfold(second.unsqueeze(-1), lead).squeeze(-1) if folded else second
        return (output, unfold(second, lead)) if return_weights else output
