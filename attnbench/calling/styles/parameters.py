"""What a callee can be asked for, read from its signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

MEANINGS: Mapping[str, tuple[str, ...]] = {
    "attn_mask": ("attn_mask", "mask", "attention_mask", "attn_bias"),
    "key_padding_mask": ("key_padding_mask",),
    "is_causal": ("is_causal", "causal", "use_causal_mask"),
    "scale": ("scale", "softmax_scale", "scaling", "sm_scale"),
    "dropout_p": ("dropout_p", "dropout"),
    "enable_gqa": ("enable_gqa",),
    "window_size": ("window_size",),  # sliding_window is one number in transformers
    "softcap": ("softcap", "logits_soft_cap"),
    "sinks": ("sinks", "s_aux", "sink"),
    "alibi_slopes": ("alibi_slopes",),
    "k_scale": ("k_scale", "k_descale"),  # the second is (B, H), as in flash-attention
    "v_scale": ("v_scale", "v_descale"),
    "head_offset": ("head_offset",),
    "return_weights": (
        "need_weights",
        "return_weights",
        "return_attention_scores",
        "return_attn_probs",
    ),
}
"""How libraries call what a mechanism may accept."""

FIRST: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "queries", "q", "Q"),
    "key": ("key", "keys", "k", "K"),
    "value": ("value", "values", "v", "V"),
}
"""How libraries and textbooks call query, key and value."""


def order_of(names: Sequence[str]) -> list[int]:
    """Which of query, key and value the first three arguments are; empty if they are not these."""
    known = list(FIRST.values())
    found = [place for name in names[:3] for place in range(3) if name in known[place]]
    return found if sorted(found) == [0, 1, 2] else []


_IN_TEXT = re.compile(r"^\s*(\w+)\((.*?)\)\s*(?:->|:|$)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"\s*(\*{0,2}\w+)")


@dataclass(frozen=True)
class Keywords:
    """The arguments of a callee.

    Args:
        names: the names of all arguments, in order.
        named: what a mechanism accepts, to the callee's own name for it.
        required: names of those without a default.
        open: whether it takes any keyword.
    """

    names: tuple[str, ...]
    named: Mapping[str, str]
    required: tuple[str, ...] = ()
    open: bool = False

    def __contains__(self, meaning: object) -> bool:
        return meaning in self.named

    def spelt(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given by meaning, under the callee's own names if it has others."""
        return {self.named.get(meaning, meaning): value for meaning, value in given.items()}


def keywords_of(callee: Callable[..., Any]) -> Keywords | None:
    """The keywords of a function, a class or a module's forward; ``None`` if nothing tells them."""
    renamed = getattr(callee, "__signature__", None)
    if renamed is None and isinstance(callee, nn.Module):
        callee = callee.forward
    try:
        parameters = list((renamed or inspect.signature(callee)).parameters.values())
    except (TypeError, ValueError):
        return _from_text(getattr(callee, "__doc__", None) or "")
    kinds = inspect.Parameter
    loose = (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    named = [p for p in parameters if p.kind not in loose]
    return _keywords(
        [p.name for p in named],
        required=[p.name for p in named if p.default is p.empty],
        takes_any=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def _from_text(text: str) -> Keywords | None:
    """Read from the first line of a docstring, as of what torch writes in C++."""
    match = _IN_TEXT.search(text)
    if match is None:
        return None
    parts = [part for part in match[2].split(",") if part.strip() not in ("", "*", "/")]
    names = [found[1] for part in parts if (found := _NAME.match(part))]
    required = [name for name, part in zip(names, parts, strict=False) if "=" not in part]
    return _keywords(names, required=required)


def _keywords(names: list[str], *, required: list[str], takes_any: bool = False) -> Keywords:
    named = {
        meaning: next(name for name in known if name in names)
        for meaning, known in MEANINGS.items()
        if set(known) & set(names)
    }
    return Keywords(tuple(names), named, tuple(required), takes_any)
