"""What is built in keeps every property that applies to it, as ``attnbench run`` checks it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.checking.outcomes import COMPILING
from attnbench.checking.plan import select_invariants
from attnbench.registry.catalog import registry
from attnbench.subject.lookup import installed
from tests.invariant_runs import run

OWN = {name for name, _, plugin in registry().specs() if plugin.distribution == "attnbench"}
SUBJECTS = [str(s.address) for s in installed() if replace(s.address, options={}) in OWN]


@pytest.mark.parametrize("subject", [name for name in SUBJECTS if "(" not in name])
def test_a_built_in_passes(subject: str) -> None:
    names = [one.name for one in select_invariants(None) if one.name not in COMPILING]
    outcomes = [run(subject, name) for name in names]
    wrong = [o for o in outcomes if o.status not in ("passed", "skipped")]
    assert not wrong, [f"{o.invariant}: {o.status}: {o.reason}" for o in wrong]
    assert sum(o.status == "passed" for o in outcomes) > 20
