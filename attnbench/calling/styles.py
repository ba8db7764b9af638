"""The adapter of a target: of the style that is named, or of an object whose style is known."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from attnbench.calling import STYLES
from attnbench.calling.adapted import name_of
from attnbench.calling.binding import in_words
from attnbench.calling.signature import (
    FIRST,
    Keywords,
    keywords_of,
)
from attnbench.distributions import advice
from attnbench.errors import StyleError, UnknownNameError, nearest
from attnbench.registry.catalog import registry
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec

LAYOUTS = {"sdpa": ("BHLE", "BHSE"), "flash": ("BLHE", "BSHE")}
"""Axes of query and key in the styles of functions."""


def known_style(target: object) -> str | None:
    """The style of an object that is known exactly; ``None`` for all else."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return "sdpa"
    if getattr(target, "__module__", "") == "torch.nn.attention.flex_attention":
        return "flex" if getattr(target, "__name__", "") == "flex_attention" else None
    is_multihead = target is nn.MultiheadAttention or type(target) is nn.MultiheadAttention
    return "multihead" if is_multihead else None


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


def adapted(target: Any, style: str | None = None, **fields: Any) -> Any:
    """The spec of what is no spec itself.

    Args:
        target: a function, a module or a class.
        style: how it is called, perhaps with its arguments' own names in brackets, as
            ``sdpa(queries=query)``; by default that of an object known exactly.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        UnknownNameError: there is no such style.
        StyleError: it does not fit.
    """
    if not callable(target):
        raise StyleError(f"{target!r} is of type {type(target).__name__}, which is not callable.")
    style = style or known_style(target)
    assert style is not None
    style, bracket, call = style.partition("(")
    brought = {each.name: each for each in registry().styles()}
    if style not in STYLES and style not in brought:
        known = advice(f"adapters.{style}") or (
            f"{nearest(style, [*STYLES, *brought])} What is called in another way gets a spec: "
            "attnbench.MechanismSpec(name=..., make=...)."
        )
        raise UnknownNameError(f"no style is called {style!r}. {known}")
    if bracket:
        fields["call"] = f"f({call}"
    if style in STYLES:
        adapt = getattr(importlib.import_module(STYLES[style]), style)
    else:
        if (reason := brought[style].fits(target)) is not None:
            raise StyleError(f"{name_of(target)} cannot be called as {style}: {reason}.")
        adapt = brought[style].adapt
    made = adapt(target, **fields)
    if not isinstance(made, MechanismSpec | LayerSpec | ScoringSpec):
        raise StyleError(f"the style {style!r} gave {type(made).__name__}, which is no spec.")
    return made
