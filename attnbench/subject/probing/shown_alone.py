"""The only style of call that small calls show, where the signature does not tell it."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import torch

from attnbench.specs import MechanismSpec
from attnbench.subject.probing.probe_result import probe
from attnbench.subject.styles.callee import AdaptedSpec
from attnbench.subject.styles.signature import keywords_of, order_of
from attnbench.subject.styles.style_choice import adapted

_BY_NAMES = "recognised by its arguments"
_SHOWN = "as small calls show; --as names another style"


def shown_alone(target: Any) -> MechanismSpec | str:
    """The spec of what small calls show to follow one style alone, and its usual conventions.

    Or a line on what they show of a function; empty for a class.
    """
    told, style = "", None
    if not inspect.isclass(target):
        found = probe(target)
        told = f"\n{found.proposal}"
        style = found.style if found.options == f"--as {found.style}" else None
    elif _takes_batches_alone(target):
        style = "textbook"
    spec = told if style is None else adapted(target, style)
    if not isinstance(spec, AdaptedSpec):
        return spec
    return replace(spec, notes=(_SHOWN, *(note for note in spec.notes if note != _BY_NAMES)))


def _takes_batches_alone(made: Any) -> bool:
    """Whether a class of query, key and value takes ``(B, L, E)``, and not ``(B, L, H, E)``."""
    keywords = keywords_of(made.forward) if hasattr(made, "forward") else None
    names = [name for name in keywords.names if name != "self"] if keywords else []
    if len(names) != 3 or not order_of(names):
        return False
    try:
        callee: Any = adapted(made, "textbook").make(8, 8, 8).callee
    except Exception:  # it is of another form, or refuses the sizes
        return False
    query, key = torch.ones(2, 3, 2, 8), torch.ones(2, 5, 2, 8)
    try:
        with torch.no_grad():
            result = callee(query, key, key)
    except Exception:  # whatever it raises, it does not take this
        return True
    return getattr(result[0] if isinstance(result, tuple) else result, "shape", ()) != query.shape
