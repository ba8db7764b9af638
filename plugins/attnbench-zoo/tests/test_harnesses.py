"""Each harness kills by its own rule, and takes the right twin for right."""

from __future__ import annotations

import pytest
from attnbench_zoo import entries, score
from attnbench_zoo.harnesses import HARNESSES

NAMED = {(entry.name, entry.right): entry for entry in entries()}
KILLED = {
    "five random inputs": "scale_missing",
    "five random inputs, with masks": "mask_never_applied",
    "torch.testing.assert_close": "boolean_mask_added",
    "gradcheck": "weights_detached",
    "OpInfo": "causal_top_left",
    "flash-attention's ratio": "causal_top_left",
}
MISSED = {
    "five random inputs": "mask_never_applied",
    "gradcheck": "scale_missing",
}
"""What the calls or the rule of a harness cannot show."""


@pytest.mark.parametrize("name", HARNESSES)
def test_a_harness_kills_by_its_rule_and_accuses_no_twin(name: str) -> None:
    found = score(HARNESSES[name], [NAMED[KILLED[name], False], NAMED["attention", True]])
    assert (found.killed, found.accused) == ([KILLED[name]], []), found.errors


@pytest.mark.parametrize("name", MISSED)
def test_a_harness_misses_what_it_does_not_pass(name: str) -> None:
    assert score(HARNESSES[name], [NAMED[MISSED[name], False]]).killed == []
