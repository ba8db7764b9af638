"""The styles of call that fit a callee, by the names of the arguments in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from attnbench.errors import StyleError
from attnbench.subject.styles.signature import FIRST, Keywords, keywords_of

_FIRST: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "sdpa": tuple(FIRST.values()),
    "flash": tuple(FIRST.values()),
    "textbook": tuple(FIRST.values()),
    "interface": (("module",), *FIRST.values()),
    "varlen": (
        *FIRST.values(),
        *((n,) for n in ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")),
    ),
    "paged": (("query", "q"), ("key_cache", "k_cache"), ("value_cache", "v_cache")),
}
"""The first arguments of a function, each with its possible names."""

_NAMED: Mapping[str, tuple[str, ...]] = {
    "varlen": ("causal",),
    "paged": ("cache_seqlens", "block_table", "causal"),
    "interface": ("attention_mask",),
    "multihead": ("embed_dim", "num_heads"),
    "keras": ("num_heads", "key_dim"),
}
"""The arguments that a function must have at any place."""

_FOREIGN: Mapping[str, str] = {"flash": "is_causal"}
"""An argument that shows that a function follows another style."""

_LAYOUTS: Mapping[str, str] = {"sdpa": "(B, H, L, E)", "flash": "(B, L, H, E)"}
"""The layouts of tensors by which styles with the same arguments differ."""

_PASSED: Mapping[str, tuple[str, ...]] = {"interface": ("scaling", "dropout")}
"""The arguments that are always passed, even if they have a default."""

_STYLES = ("sdpa", "flash", "interface", "multihead", "keras", "varlen", "paged")


def _missing(keywords: Keywords, style: str) -> str | None:
    """The argument that is missing or superfluous for a style; ``None`` if the style fits."""
    first = _FIRST.get(style, ())
    for place, known in enumerate(first):
        if place >= len(keywords.names) or keywords.names[place] not in known:
            return f"argument {place + 1} should be {known[0]}"
    for name in _NAMED.get(style, ()):
        if name not in keywords.names:
            return f"it has no argument {name}"
    if _FOREIGN.get(style) in keywords.names:
        return f"its argument {_FOREIGN[style]} belongs to another style"
    given = {*keywords.names[: len(first)], *_NAMED.get(style, ()), *_PASSED.get(style, ())}
    more = [name for name in keywords.required if name not in given]
    return f"it needs {more[0]} besides" if more else None


def fits(callee: Any, style: str) -> str | None:
    """The reason why a style does not fit a callee, or ``None`` if it does."""
    if not callable(callee):
        return f"it is {type(callee).__name__} and not callable"
    if inspect.isclass(callee) and style in _FIRST:
        return (
            "it is a class; write these lines beside it, and name SPEC\n"
            f"  from attnbench.adapters import {style}\n"
            f"  SPEC = {style}({callee.__name__}(...), name={callee.__name__!r})\n"
            "which checks an instance"
        )
    keywords = keywords_of(callee)
    if keywords is None:
        return "nothing tells its arguments; wrap it in a function that names them"
    return _missing(keywords, style)


def fitting(callee: Any) -> list[str]:
    """The styles that fit a callee."""
    found = [style for style in _STYLES if fits(callee, style) is None]
    made = inspect.isclass(callee)
    return [style for style in found if made == (style in ("multihead", "keras")) or not made]


def fitted(callee: Callable[..., Any], style: str) -> Keywords:
    """The keywords of a callee that a style fits.

    Raises:
        StyleError: the style does not fit; the message names the argument and a style that fits.
    """
    complaint = fits(callee, style)
    if complaint is None:
        found = keywords_of(callee)
        assert found is not None
        return found
    name = getattr(callee, "__name__", repr(callee))
    raise StyleError(f"{name} cannot be called as {style}: {complaint}.{better(callee)}")


def better(callee: Any) -> str:
    """A sentence, after a space, with the styles that fit a callee; empty if none does."""
    known = fitting(callee) if callable(callee) else []
    listed = [f"{one} on {_LAYOUTS[one]}" if one in _LAYOUTS else one for one in known]
    unsaid = any(one in _LAYOUTS for one in known)
    end = "; the signature does not say which layout it takes" if unsaid else ""
    return f" Its arguments fit {' or '.join(listed)}{end}." if known else ""
