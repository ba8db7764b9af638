"""The styles of call that fit a callee, by the names of the arguments in its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from attnbench.calling.keywords import FIRST, Keywords, keywords_of
from attnbench.errors import StyleError

_FIRST = tuple(FIRST.values())


@dataclass(frozen=True)
class _Arguments:
    """The arguments by which a signature shows a style.

    Args:
        first: its first arguments, each with its possible names.
        named: those that it must have at any place.
        foreign: one that shows that it follows another style.
        layout: the layout of its tensors, where styles with the same arguments differ in it.
    """

    first: tuple[tuple[str, ...], ...] = ()
    named: tuple[str, ...] = ()
    foreign: str = ""
    layout: str = ""


_ARGUMENTS: Mapping[str, _Arguments] = {
    "sdpa": _Arguments(_FIRST, layout="(B, H, L, E)"),
    "flash": _Arguments(_FIRST, foreign="is_causal", layout="(B, L, H, E)"),
    "multihead": _Arguments(named=("embed_dim", "num_heads")),
}
"""The styles that a signature shows."""


def _missing(keywords: Keywords, style: str) -> str | None:
    """The argument that is missing or superfluous for a style; ``None`` if the style fits."""
    known = _ARGUMENTS[style]
    for place, names in enumerate(known.first):
        if place >= len(keywords.names) or keywords.names[place] not in names:
            return f"argument {place + 1} should be {names[0]}"
    for name in known.named:
        if name not in keywords.names:
            return f"it has no argument {name}"
    if known.foreign in keywords.names:
        return f"its argument {known.foreign} belongs to another style"
    given = {*keywords.names[: len(known.first)], *known.named}
    more = [name for name in keywords.required if name not in given]
    return f"it needs {more[0]} besides" if more else None


def fits(callee: Any, style: str) -> str | None:
    """The reason why a style does not fit a callee, or ``None`` if it does."""
    if not callable(callee):
        return f"it is {type(callee).__name__} and not callable"
    if inspect.isclass(callee) and _ARGUMENTS[style].first:
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
    found = [style for style in _ARGUMENTS if fits(callee, style) is None]
    made = inspect.isclass(callee)
    return [style for style in found if made == (style == "multihead") or not made]


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
    layouts = {style: _ARGUMENTS[style].layout for style in known}
    listed = [f"{style} on {layout}" if layout else style for style, layout in layouts.items()]
    unsaid = any(layouts.values())
    end = "; the signature does not say which layout it takes" if unsaid else ""
    return f" Its arguments fit {' or '.join(listed)}{end}." if known else ""
