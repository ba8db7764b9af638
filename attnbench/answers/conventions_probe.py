"""Which conventions is it? The answers of a probe as plain data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from attnbench.errors import UsageError
from attnbench.registry.address import Address
from attnbench.specs import MechanismSpec
from attnbench.subject.lookup import attribute, resolve
from attnbench.subject.probing.probe_result import probe


def probed(target: Address, call: str | None = None) -> dict[str, Any]:
    """Probe a target; called by the command in a child process.

    Raises:
        UsageError: the target is no function, module or mechanism.
    """
    raw = None if target.source is None or target.style else attribute(target)
    if raw is None or not callable(raw):
        (*_, subject) = resolve(target)
        raw = subject.spec
        if not isinstance(raw, MechanismSpec):
            raise UsageError(f"{target} is a {type(raw).__name__}; probe takes query, key, value.")
    found = probe(raw, call=call)
    return {
        "answers": [asdict(answer) for answer in found.answers.values()],
        "options": found.options,
        "proposal": found.proposal,
    }
