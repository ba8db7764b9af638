"""The styles of call by name, and the objects of which the style is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from attnbench.errors import StyleError, UnknownNameError, nearest
from attnbench.specs import MechanismSpec
from attnbench.subject.styles.callee import name_of
from attnbench.subject.styles.fitting import fitting
from attnbench.subject.styles.functions import flash, interface, sdpa
from attnbench.subject.styles.modules import multihead

__all__ = ["STYLES", "adapted", "known_style"]

STYLES: Mapping[str, Callable[..., MechanismSpec]] = MappingProxyType(
    {"sdpa": sdpa, "flash": flash, "multihead": multihead, "interface": interface}
)
"""What makes a spec, by the name of its style."""


def known_style(target: object) -> str | None:
    """The style of an object that is known exactly; ``None`` for all else."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return "sdpa"
    if target is nn.MultiheadAttention or type(target) is nn.MultiheadAttention:
        return "multihead"
    return None


def adapted(target: Any, style: str | None = None, **fields: Any) -> MechanismSpec:
    """The spec of what is no spec itself.

    Args:
        target: a function, a module or a class.
        style: how it is called; where none is named, only an object known exactly has one.
        fields: of the spec, in place of what the adapter knows.

    Raises:
        UnknownNameError: there is no such style.
        StyleError: it does not fit, or none is named.
    """
    if not callable(target):
        raise StyleError(f"{target!r} is of type {type(target).__name__}, which is not callable.")
    style = style or known_style(target)
    if style is None:
        fit = fitting(target)
        hint = f"{', '.join(fit)} would fit" if fit else "none is known to fit"
        raise StyleError(
            f"{name_of(target)} is no spec, and how it is called is not known: name the style with "
            f"--as ({hint}; there are {', '.join(STYLES)}). A guess could take its mask for the "
            "opposite."
        )
    if style not in STYLES:
        raise UnknownNameError(f"no style is called {style!r}. {nearest(style, STYLES)}")
    return STYLES[style](target, **fields)
