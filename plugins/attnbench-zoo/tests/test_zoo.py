"""The zoo as data, and the door to it."""

from __future__ import annotations

import torch
from attnbench_zoo import Entry, entries, score

from attnbench import Case

BY_NAME = {entry.name: entry for entry in entries() if not entry.right}
RIGHT = {entry.name: entry for entry in entries() if entry.right}
FEW = [BY_NAME["mask_never_applied"], BY_NAME["scale_missing"], RIGHT["attention"]]


def test_every_mutant_says_what_is_wrong_and_where_it_comes_from() -> None:
    for entry in BY_NAME.values():
        assert entry.mistake.endswith("."), entry.name
        assert all(bug in ("own", "seen in review") or "#" in bug for bug in entry.bugs), entry.name
        assert entry.bugs, entry.name
        assert entry.kind in ("scoring", "kernel", "mechanism", "packed", "layer"), entry.name


def test_an_oracle_that_takes_all_for_right_kills_and_accuses_none() -> None:
    found = score(lambda entry: True, FEW)
    assert (found.share(), found.killed, found.accused) == (0.0, [], [])
    assert found.survivors == ["mask_never_applied", "scale_missing"]


def test_an_oracle_that_refuses_all_accuses_what_is_right() -> None:
    found = score(lambda entry: False, FEW)
    assert (found.share(), found.accused) == (1.0, ["attention"])
    assert "mechanism     2 of   2 100.0%  1 of 1" in str(found)


def test_an_assertion_in_an_oracle_is_a_refusal_and_is_kept() -> None:
    def oracle(entry: Entry) -> bool:
        torch.testing.assert_close(
            entry.candidate(Case()).output(), entry.expected(Case()).output()
        )
        return True

    found = score(oracle, FEW)
    assert found.killed == ["scale_missing"]
    assert found.errors["scale_missing"].startswith("AssertionError: Tensor-likes are not close!")
