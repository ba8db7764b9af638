"""The adapter of a target: that of its style, or of an object whose style is known."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import nn

from attnbench.calling.styles import STYLES
from attnbench.calling.styles.argument_names import CACHES
from attnbench.calling.styles.callee import name_of
from attnbench.calling.styles.fitting import better
from attnbench.calling.styles.signature import keywords_of
from attnbench.calling.styles.textbook_calls import has_textbook_names
from attnbench.errors import StyleError, UnknownNameError, nearest
from attnbench.specs import MechanismSpec


def known_style(target: object) -> str | None:
    """The style of an object that is known exactly; ``None`` for all else."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return "sdpa"
    if getattr(target, "__module__", "") == "torch.nn.attention.flex_attention":
        return "flex" if getattr(target, "__name__", "") == "flex_attention" else None
    if target is nn.MultiheadAttention or type(target) is nn.MultiheadAttention:
        return "multihead"
    return "textbook" if has_textbook_names(target) else None


_POOLED = """
{name} takes {query} and {key} alone. If it gives scores (..., L, S), write a ScoringSpec. If it
pools {key}, write beside it a class that hands out its weights, and check that as textbook:
  class Pooled({name}):
      def forward(self, query, key, value):
          rows = [super(Pooled, self).forward(row, key)[1] for row in query.split(1, 1)]
          weights = torch.cat(rows, 1)  # (B, L, S)
          return weights @ value, weights"""


_LAYER = """
{name} may be a layer: write beside it, and check that, with the sizes that it takes:
  SPEC = attnbench.adapters.layer({name}, sizes=lambda size: max(2, size // 2 * 2))"""


_BATCHED = """
{name} takes {names} alone. If they are (B, L, E) and (B, S, E), check it as textbook
(--as textbook, or style="textbook")."""


def _hint(target: Any) -> str:
    """What to write for a class that takes no mask, or a query and what it attends to alone."""
    keywords = keywords_of(target.forward) if hasattr(target, "forward") else None
    names = [name for name in keywords.names if name != "self"] if keywords else []
    if not inspect.isclass(target) or not names:
        return ""
    if len(names) == 1 or "mask" in names[1] or names[1] in CACHES:
        return _LAYER.format(name=name_of(target))
    if len(names) == 3:
        return _BATCHED.format(name=name_of(target), names=", ".join(names))
    if len(names) != 2:
        return ""
    return _POOLED.format(name=name_of(target), query=names[0], key=names[1])


def adapted(target: Any, style: str | None = None, **fields: Any) -> MechanismSpec:
    """The spec of what is no spec itself.

    Args:
        target: a function, a module or a class.
        style: how it is called, perhaps with its arguments' own names in brackets, as
            ``sdpa(queries=query)``; where none is named, only an object known exactly has one.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        UnknownNameError: there is no such style.
        StyleError: it does not fit, or none is named.
    """
    if not callable(target):
        raise StyleError(f"{target!r} is of type {type(target).__name__}, which is not callable.")
    style = style or known_style(target)
    if style is None:
        fit = better(target)
        if not fit:
            raise StyleError(
                f"{name_of(target)} is no spec, and none of the styles of call fits it "
                f"({', '.join(STYLES)}). Write a spec beside it, and name that: "
                "attnbench.MechanismSpec(name=..., make=...) for a module of query, key and value, "
                f"or attnbench.adapters.layer(lambda size: {name_of(target)}(...)) for one of "
                f"hidden states.{_hint(target)}"
            )
        raise StyleError(
            f"{name_of(target)} is no spec, and how it is called is not known: name the style by "
            f"--as, by style= in Python, or in the address: 'file.py:{name_of(target)} as sdpa'."
            f"{fit} A guess could take heads for positions, or a mask for its opposite."
        )
    style, bracket, call = style.partition("(")
    if style not in STYLES:
        raise UnknownNameError(
            f"no style is called {style!r}. {nearest(style, STYLES)} What is called in another way "
            "gets a spec: attnbench.MechanismSpec(name=..., make=...)."
        )
    if bracket:
        fields["call"] = f"f({call}"
    module, _, adapter = STYLES[style].partition(":")
    made = getattr(importlib.import_module(f"{__package__}.{module}"), adapter)(target, **fields)
    assert isinstance(made, MechanismSpec)
    return made
