"""The declaration in a spec that allows its subject to violate an invariant by design."""

from __future__ import annotations

from dataclasses import fields

from attnbench.checking.known_causes import known_causes
from attnbench.checking.outcomes import CONTRACT
from attnbench.specs import LayerSpec
from attnbench.specs.conventions import LAYER_DEFAULTS, Conventions
from attnbench.subject.subject import Subject

_KEYS = frozenset(field.name for field in fields(Conventions))


def declaration(subject: Subject, invariant: str) -> str:
    """What to declare if the subject is meant to violate an invariant; empty for the contract.

    A convention, a field or a law says what holds instead, and keeps the rest of the suite in
    force; an exemption is offered where there is none of them.
    """
    spec, known = subject.spec, known_causes()
    if invariant == CONTRACT:
        return ""
    if invariant in subject.maker.laws:  # a scoring function obeys pools_values undeclared
        return f'leave "{invariant}" out of the laws of the spec'
    if known["accepts"].get(invariant) in subject.accepts:
        return f'leave "{known["accepts"][invariant]}" out of accepts'
    if isinstance(spec, LayerSpec) and invariant in known["fields"]:
        return f"{known['fields'][invariant]} in the spec says so"
    key, values = known["conventions"].get(invariant, ("", ""))
    keys = LAYER_DEFAULTS if isinstance(spec, LayerSpec) else _KEYS
    conventions = getattr(spec, "conventions", None)
    style = getattr(spec, "style", None)
    if key in keys and conventions is not None and key not in conventions:
        probed = "; attnbench probe finds it" if style in ("sdpa", "flash") else ""
        return f"the convention {key} says so (--convention {key}=VALUE{probed}): {values}"
    if style and subject.address.source is not None:  # it has no spec
        return f'--exempt "{invariant}=why" skips it'
    return f'exempt={{"{invariant}": "why"}} in the spec skips it'
