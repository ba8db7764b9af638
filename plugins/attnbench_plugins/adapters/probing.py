"""What the search for a callee's call shows of its conventions, and what it leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from attnbench import MechanismSpec
from attnbench.errors import StyleError
from attnbench.styles import Conventions, adapted, known_style, name_of, renamed
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.trials.facts import is_scaled_dot
from attnbench_plugins.adapters.trials.small_calls import WIDTH, Callee, Calls


@dataclass(frozen=True)
class Probe:
    """What small calls showed of a callee.

    Args:
        name: the callee's name.
        conventions: the conventions that were found, under the names that specs use.
        unknown: all others, which hold as specs have them by default.
        style: the style of call; ``None`` for a spec.
        spec: a spec with these conventions, without a reference where it computes another formula.
    """

    name: str
    conventions: Mapping[str, Any]
    unknown: tuple[str, ...]
    style: str | None
    spec: MechanismSpec


def probe(function: Any, *, call: str | None = None) -> Probe:
    """The conventions that the search for the call of query, key and value shows.

    Args:
        function: a function, a module, a class, or the spec of a mechanism.
        call: what its arguments are called, as ``"f(queries=query, keys=key, values=value)"``.

    Raises:
        StyleError: no call of it is known, or it takes no query, key and value.
    """
    spec = function
    if not isinstance(function, MechanismSpec):
        target = function if call is None else renamed(function, call)
        style = known_style(target) if callable(target) else None
        spec = spec_of(target) if style is None else adapted(target, style)
    if not isinstance(spec, MechanismSpec):
        raise StyleError(f"{name_of(function)} takes no query, key and value.")
    named = getattr(spec, "style", None)
    if named in ("sdpa", "flash") and spec.reference is not None:
        made: Any = spec.make
        callee = Callee(lambda *sizes: made(*sizes).callee, WIDTH)
        if not is_scaled_dot(Calls(callee, made(WIDTH, WIDTH, WIDTH).binding)):
            spec = replace(spec, reference=None, formula="")
    found = spec.conventions
    unknown = tuple(each.name for each in fields(Conventions) if each.name not in found)
    return Probe(spec.name, found, unknown, named, spec)
