"""A baseline of known failures: what it skips, what is stale, and what an update keeps."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.checking.known_failures import KnownFailures
from attnbench.checking.outcomes import Outcome
from attnbench.errors import UsageError

FAILED = Outcome("mine", "weights_sum_to_one", "failed", "a row sums to 2\nmore")
PASSED = Outcome("mine", "keeps_the_contract", "passed")
NEW = Outcome("mine", "unit_variance", "crashed", "it died")


def written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "known.txt"
    path.write_text("# a comment\n\n" + "".join(f"{line}\n" for line in lines))
    return path


def test_a_known_failure_is_skipped_with_its_reason_and_a_new_one_fails(tmp_path: Path) -> None:
    path = written(tmp_path, "mine: weights_sum_to_one")
    baseline = KnownFailures.read(path)
    known = baseline.skip_known(FAILED)
    assert known.status == "skipped"
    assert known.reason == f"known failure, in {path}: a row sums to 2"
    assert baseline.has_skipped(known)
    assert baseline.skip_known(NEW) is NEW
    assert baseline.skip_known(PASSED) is PASSED


def test_entries_that_no_longer_fail_are_stale_if_they_were_looked_at(tmp_path: Path) -> None:
    entries = ("mine: keeps_the_contract", "mine: weights_sum_to_one", "mine: gone", "other: gone")
    baseline = KnownFailures.read(written(tmp_path, *entries))
    outcomes = [PASSED, baseline.skip_known(FAILED)]
    assert baseline.stale(outcomes, None) == ["mine: gone", "mine: keeps_the_contract"]
    assert baseline.stale(outcomes, ["keeps_the_contract"]) == ["mine: keeps_the_contract"]
    skipped = Outcome("mine", "keeps_the_contract", "skipped", "for whatever reason")
    assert baseline.stale([skipped], ["keeps_the_contract"]) == []


def test_an_update_drops_what_holds_and_keeps_what_was_not_looked_at(tmp_path: Path) -> None:
    path = written(tmp_path, "mine: keeps_the_contract", "other: unit_variance")
    path.write_text(KnownFailures.read(path, update=True).updated([PASSED, FAILED, NEW], None).text)
    assert KnownFailures.read(path).entries == {
        "mine: weights_sum_to_one",
        "mine: unit_variance",
        "other: unit_variance",
    }
    assert path.read_text().startswith("# Known failures")


def test_entries_of_a_subject_that_is_gone_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, "gone: unit_variance", "mine: weights_sum_to_one")
    baseline = KnownFailures.read(path)
    outcomes = [baseline.skip_known(FAILED)]
    (line,) = baseline.remarks(outcomes, None, ["mine"])
    assert line.startswith(f"{path}: no target has the subject of: gone: unit_variance (")
    assert baseline.remarks(outcomes, None, None) == []  # a part of the targets


def test_a_name_may_hold_colons_and_blanks(tmp_path: Path) -> None:
    entry = "f of a b.py:f as sdpa: unit_variance"
    assert KnownFailures.read(written(tmp_path, entry)).entries == {entry}


def test_a_missing_or_damaged_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no baseline .*; --update-baseline writes one"):
        KnownFailures.read(tmp_path / "none.txt")
    assert KnownFailures.read(tmp_path / "none.txt", update=True).entries == frozenset()
    with pytest.raises(UsageError, match=r"known\.txt:3: 'mine' is not of the form"):
        KnownFailures.read(written(tmp_path, "mine"))
    with pytest.raises(UsageError, match="cannot read the baseline"):
        KnownFailures.read(tmp_path)
