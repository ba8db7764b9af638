"""Whether the arguments of a callee are those of a style."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attnbench.errors import StyleError
from attnbench.styles import FIRST, LAYOUTS, Keywords, keywords_of
from attnbench_plugins.adapters.binding import in_words


def fits(callee: Any, style: str) -> str | None:
    """The reason why the arguments of a callee are not those of a style; ``None`` if they are."""
    if not callable(callee):
        return f"it is {type(callee).__name__} and not callable"
    if inspect.isclass(callee) and style in LAYOUTS:
        return (
            "it is a class; write these lines beside it, and name SPEC\n"
            f"  from attnbench.adapters import {style}\n"
            f"  SPEC = {style}({callee.__name__}(...), name={callee.__name__!r})\n"
            "which checks an instance"
        )
    keywords = keywords_of(callee)
    if keywords is None:
        return "nothing tells its arguments; wrap it in a function that names them"
    given = {*keywords.names[:3]} if style in LAYOUTS else {"embed_dim", "num_heads"}
    if style in LAYOUTS:
        for place, names in enumerate(FIRST.values()):
            if keywords.names[place : place + 1] not in [(name,) for name in names]:
                return f"argument {place + 1} should be {names[0]}"
        if style == "flash" and "is_causal" in keywords.names:
            return "its argument is_causal belongs to another style"
    for name in sorted(given - {*keywords.names}):
        return f"it has no argument {name}"
    return next((f"it needs {n} besides" for n in keywords.required if n not in given), None)


def fitted(callee: Callable[..., Any], style: str) -> Keywords:
    """The keywords of a callee that a style fits.

    Raises:
        StyleError: the style does not fit; the message names the argument and a style that fits.
    """
    complaint, found = fits(callee, style), keywords_of(callee) if callable(callee) else None
    if complaint is None and found is not None:
        return found
    others = [f"{other} on {in_words(LAYOUTS[other][0])}" for other in LAYOUTS]
    others = [text for text in others if fits(callee, text.partition(" ")[0]) is None]
    better = f" Its arguments fit {' or '.join(others)}." if others else ""
    name = getattr(callee, "__name__", repr(callee))
    raise StyleError(f"{name} cannot be called as {style}: {complaint}.{better}")
