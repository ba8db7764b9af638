"""Adapters of functions of query, key and value: torch's and flash-attention's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from attnbench.calling.results import output_and_more
from attnbench.calling.styles.callee import (
    Callee,
    Maker,
    fold,
    fold_mask,
    spec_of,
    stored_scale,
    unfold,
)
from attnbench.calling.styles.fitting import fitted
from attnbench.calling.styles.function_trials import (
    gives_mean,
    half_types_only,
    is_causal_square,
    lets_nan_through,
    mask_value,
    sampled,
    second_output,
    takes_boolean_only,
    takes_full_masks_only,
    takes_groups,
    takes_one_mask,
)
from attnbench.calling.styles.parameters import Keywords
from attnbench.calling.styles.renaming import renames
from attnbench.calling.styles.scaled_dot_floats import SCALED_DOT
from attnbench.calling.styles.turned_masks import with_causality
from attnbench.specs import MechanismSpec, Sizes

_OPTIONS = ("window_size", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale", "head_offset")
_TELLING = {"mask", "lens", "lengths", "seqlens", "positions", "ids"}
"""Parts of the names of arguments that this style does not pass, and a report is to name."""

_SECOND = {
    "weights": ", and the weights come with it",
    "lse": ", and the log-sum-exp of the scores comes with it",
    "lse_turned": ", and the log-sum-exp of the scores comes with it, as (B, L, H)",
    "more": "",
    "unmoved": "; what comes with it, one number a query, is not looked at: a shift of all scores "
    "leaves it alone, which would move a log-sum-exp",
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
    conventions: dict[str, Any] = {"causal": "top_left"} if "is_causal" in keywords else {}
    one_mask = takes_one_mask(function, keywords)
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
    if "attn_mask" in keywords and takes_full_masks_only(make):
        settings["full_masks"] = True
        make = Maker(_Function, function, keywords, style=style, **settings)
        notes = ("masks are given as (B, H, L, S), since it raises for (L, S)",)
    if sampled(make) is not None and sampled(make, dropout_p=0.1) is None:
        accepts = [flag for flag in accepts if flag != "dropout_p"]  # it takes a module there
    if style == "flash" and takes_groups(make):
        accepts.append("enable_gqa")
    second = second_output(make)
    sums = second if second in ("lse", "lse_turned") else None
    returns = ("output", "lse") if sums else ("output",)
    if second is not None:
        accepts += ["return_weights"] if second == "weights" else []
        notes += (f"its output is the first of what it returns{_SECOND[second]}",)
    if sums:
        kind = "turned" if sums == "lse_turned" else "folded"
        make = Maker(_Function, function, keywords, style=style, log_sums=kind, **settings)
    passed = {*keywords.names[:3], *keywords.named.values()} - {"key_padding_mask"}
    left = [name for name in keywords.names if name not in passed and _TELLING & {*name.split("_")}]
    if left:
        notes += (f"{' and '.join(left)} not passed: what that hides or moves is not looked at",)
    dtypes = None
    if half := half_types_only(make):
        dtypes, error = half
        notes += (f"not tried in float32 and float64, where it raises {error}",)
    sizes = one_head_size if style == "flash" else None
    if "attn_mask" not in keywords:
        conventions["masks"] = ()
        if "is_causal" not in keywords and is_causal_square(make):
            conventions["causal"], sizes = "always", _one_length
            notes += ("it is causal and takes as many queries as keys only (found by trying)",)
    else:
        conventions |= _of_masks(make)
    known = {
        **SCALED_DOT,
        "make": make,
        "sizes": sizes,
        "accepts": tuple(accepts),
        "dtypes": dtypes,
        "returns": returns,
        "laws": ("pools_values", *(("splits_merge",) if sums else ())),
        "conventions": conventions,
    }
    return spec_of(style, function, known, fields, notes)


def _of_masks(make: Maker) -> dict[str, Any]:
    """What calls show of masks; added to the scores, a finite number leaves more than the mean."""
    found: dict[str, Any] = {}
    if takes_boolean_only(make):
        found["masks"] = ("boolean", "lengths")
    if (low := mask_value(make)) is not None:
        found["mask_value"] = low
        is_mean = "masks" in found and gives_mean(make)
        found["empty_rows"] = "mean" if is_mean else "nan"
    if lets_nan_through(make):  # 0 times NaN is NaN, as torch documents for its own
        found["hidden_slots"] = "finite"
    return found


def one_head_size(sizes: Sizes) -> Sizes:
    """The nearest sizes with values as wide as queries."""
    return sizes.replace(value_size=sizes.query_size)


def _one_length(sizes: Sizes) -> Sizes:
    """The nearest sizes with as many queries as keys, and values as wide as queries."""
    return one_head_size(sizes.replace(kv_len=sizes.q_len))


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
            if name in given:
                own = self.keywords.named[name]
                scale = stored_scale(given[name], tensor, own, heads=enable_gqa)
                given[name] = scale.transpose(1, 2) if turned and scale.dim() == 4 else scale
        tensors = [fold(tensor, heads=enable_gqa) for tensor in (query, key, value)]
        if attn_mask is not None and self.settings.get("full_masks"):
            shape = (*tensors[0].shape[:-1], key.shape[-2])
            given["attn_mask"] = given["attn_mask"].expand(shape)
        tensors = [tensor.transpose(1, 2) for tensor in tensors] if turned else tensors
        output, second = output_and_more(self.call(*tensors, **given))
        output = output.transpose(1, 2) if turned and isinstance(output, Tensor) else output
        output = unfold(output, lead)
        if self.settings.get("log_sums"):
            folded = isinstance(second, Tensor) and second.dim() == 3
            second = second.mT if folded and self.settings["log_sums"] == "turned" else second
            return output, unfold(second.unsqueeze(-1), lead).squeeze(-1) if folded else second
        return (output, unfold(second, lead)) if return_weights else output
