"""What is built in computes what its reference says, with right gradients, and keeps its laws.

``attnbench run`` holds it to every other property, too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnbench.registry.catalog import registry
from attnbench.subject.lookup import installed, resolve
from tests.invariant_runs import run

OWN = {name for name, _, plugin in registry().specs() if plugin.distribution == "attnbench"}
SUBJECTS = [str(s.address) for s in installed() if replace(s.address, options={}) in OWN]
NAMES = (
    "agrees_with_float64",
    "agrees_with_scalar_reference",
    "calls_may_be_cut_anywhere",
    "gradients_are_right",
    "later_tokens_are_invisible",
    "mask_forms_agree",
)


@pytest.mark.parametrize("address", SUBJECTS)
def test_a_built_in_passes(address: str) -> None:
    (subject,) = resolve(address)
    outcomes = [run(address, name) for name in (*NAMES, *subject.laws)]
    wrong = [o for o in outcomes if o.status not in ("passed", "skipped")]
    assert not wrong, [f"{o.invariant}: {o.status}: {o.reason}" for o in wrong]
    assert sum(o.status == "passed" for o in outcomes) > 2
