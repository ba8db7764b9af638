"""What a function of query, key and value can be asked for, read from its signature."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnbench.calling.roles import SETTINGS, named

FIRST: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "queries", "q", "Q"),
    "key": ("key", "keys", "k", "K"),
    "value": ("value", "values", "v", "V"),
}
"""How libraries and textbooks call query, key and value."""

MEANINGS: Mapping[str, tuple[str, ...]] = {
    "attn_mask": ("attn_mask", "mask", "attention_mask", "attn_bias"),
    "key_padding_mask": ("key_padding_mask",),
    **{meaning: named(role, "forward") for meaning, role in SETTINGS.items()},
    "window_size": ("window_size",),  # sliding_window is one number in transformers
}
"""How libraries call what a mechanism may accept."""

TEXTBOOK_LENGTHS = ("valid_lens", "valid_len", "valid_length", "valid_lengths", "lengths", "lens")
"""How textbooks call the lengths of the keys."""

_IN_TEXT = re.compile(r"^\s*(\w+)\((.*?)\)\s*(?:->|:|$)", re.DOTALL | re.MULTILINE)
_NAME = re.compile(r"\s*(\*{0,2}\w+)")


@dataclass(frozen=True)
class Keywords:
    """The arguments of a callee.

    Args:
        names: the names of all arguments, in order.
        required: names of those without a default.
        open: whether it takes any keyword.
    """

    names: tuple[str, ...]
    required: tuple[str, ...] = ()
    open: bool = False

    @functools.cached_property
    def named(self) -> dict[str, str]:
        """What a mechanism accepts, to the callee's own name for it."""
        found = {
            meaning: next((name for name in known if name in self.names), None)
            for meaning, known in MEANINGS.items()
        }
        return {meaning: name for meaning, name in found.items() if name is not None}

    def __contains__(self, meaning: object) -> bool:
        return meaning in self.named

    def spelt(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What is given by meaning, under the callee's own names if it has others."""
        named = self.named
        return {named.get(meaning, meaning): value for meaning, value in given.items()}


def keywords_of(callee: Callable[..., Any]) -> Keywords | None:
    """The keywords of a function, a class or a module's forward; ``None`` if nothing tells them."""
    signature = getattr(callee, "__signature__", None)
    if signature is None and isinstance(callee, nn.Module):
        callee = callee.forward
    try:
        parameters = list((signature or inspect.signature(callee)).parameters.values())
    except (TypeError, ValueError):
        return _from_text(getattr(callee, "__doc__", None) or "")
    kinds = inspect.Parameter
    known = [p for p in parameters if p.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)]
    return Keywords(
        tuple(p.name for p in known),
        tuple(p.name for p in known if p.default is p.empty),
        any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def _from_text(text: str) -> Keywords | None:
    """Read from the first line of a docstring, as of what torch writes in C++."""
    match = _IN_TEXT.search(text)
    if match is None:
        return None
    parts = [part for part in match[2].split(",") if part.strip() not in ("", "*", "/")]
    found = [(name[1], "=" in part) for part in parts if (name := _NAME.match(part))]
    names = tuple(name for name, _ in found)
    return Keywords(names, tuple(name for name, has_default in found if not has_default))


def order_of(names: Sequence[str]) -> list[int]:
    """Which of query, key and value the first three arguments are; empty if they are not these."""
    known = list(FIRST.values())
    found = [place for name in names[:3] for place in range(3) if name in known[place]]
    return found if sorted(found) == [0, 1, 2] else []
