"""The styles of call by name, and the objects of which the style is known."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from attnbench.errors import StyleError, UnknownNameError, nearest
from attnbench.specs import MechanismSpec
from attnbench.subject.styles.argument_names import CACHES
from attnbench.subject.styles.callee import name_of
from attnbench.subject.styles.fitting import better, fitting
from attnbench.subject.styles.flexible import flex
from attnbench.subject.styles.functions import flash, sdpa
from attnbench.subject.styles.interfaces import interface
from attnbench.subject.styles.keras_layers import keras
from attnbench.subject.styles.multihead_modules import multihead
from attnbench.subject.styles.packing import paged, varlen
from attnbench.subject.styles.signature import keywords_of
from attnbench.subject.styles.textbook_calls import has_textbook_names
from attnbench.subject.styles.textbook_classes import textbook

_FLEX = "torch.nn.attention.flex_attention"


def _flex_of(mod: Any, **fields: Any) -> MechanismSpec:
    """A spec of what ``--as flex`` names: a score_mod, a mask_mod, or ``flex_attention`` itself."""
    if getattr(mod, "__module__", "") == _FLEX and mod.__name__ == "flex_attention":
        return flex(**fields)
    try:
        count = len(inspect.signature(mod).parameters)
    except (TypeError, ValueError):
        count = 0
    if "sdpa" in fitting(mod):  # of four arguments too, as a mask_mod
        raise StyleError(
            f"{name_of(mod)} cannot be called as flex: it takes query, key and value, but a "
            f"score_mod takes score, batch, head, q_idx, kv_idx.{better(mod)}"
        )
    if count not in (4, 5):
        raise StyleError(
            f"{name_of(mod)} cannot be called as flex: it takes {count} arguments, but a score_mod "
            "takes score, batch, head, q_idx, kv_idx, and a mask_mod the last four."
        )
    return flex(mod, **fields) if count == 5 else flex(None, mod, **fields)


STYLES: Mapping[str, Callable[..., MechanismSpec]] = {
    "sdpa": sdpa,
    "flash": flash,
    "textbook": textbook,
    "multihead": multihead,
    "interface": interface,
    "flex": _flex_of,
    "keras": keras,
    "varlen": varlen,
    "paged": paged,
}
"""What makes a spec, by the name of its style."""


def known_style(target: object) -> str | None:
    """The style of an object that is known exactly; ``None`` for all else."""
    if target is torch.nn.functional.scaled_dot_product_attention:
        return "sdpa"
    if getattr(target, "__module__", "") == _FLEX and callable(target):
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


def _without_values(target: Any) -> str:
    """What to write beside a class that takes a query and what it attends to, and no values."""
    keywords = keywords_of(target.forward) if hasattr(target, "forward") else None
    names = [name for name in keywords.names if name != "self"] if keywords else []
    if not inspect.isclass(target) or not names:
        return ""
    if len(names) == 1 or "mask" in names[1] or names[1] in CACHES:
        return _LAYER.format(name=name_of(target))
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
                f"hidden states.{_without_values(target)}"
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
    return STYLES[style](target, **fields)
