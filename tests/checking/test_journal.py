"""Journals of checks: what is kept, what is not run again, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attnbench.checking.journal import Journal
from attnbench.checking.outcomes import Outcome
from attnbench.checking.parallel import over_seeds
from attnbench.checking.work import Work, digests, remaining_works
from attnbench.errors import UsageError
from attnbench.registry.address import Address

ASKED = {"profile": "quick", "versions": {"torch": "2.13.0"}}


def one(invariant: str, status: str = "passed", seed: int | None = None) -> Outcome:
    return Outcome("additive", invariant, status, f"{seed}", cases=10, seconds=1.0, seed=seed)


def test_outcomes_come_back_and_are_not_asked_for_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    journal = Journal(path, ASKED)
    journal.add(one("a", seed=3))
    again = Journal(path, ASKED)
    assert again.outcomes == [one("a", seed=3)]
    three, four = (Work(Address("additive"), ("a", "b"), "additive", seed=n) for n in (3, 4))
    assert remaining_works([three, four], again.outcomes) == [
        replace(three, invariants=("b",)),
        four,
    ]
    again.add(one("b", seed=3))
    assert remaining_works([three, four], again.outcomes) == [four]


def test_a_torn_last_line_is_left_out_and_the_next_outcome_takes_its_place(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, ASKED).add(one("a"))
    with path.open("a") as file:
        file.write('{"subject": "addi')
    Journal(path, ASKED).add(one("b"))
    assert [o.invariant for o in Journal(path, ASKED).outcomes] == ["a", "b"]


def test_a_torn_first_line_is_begun_again(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, ASKED)
    whole = path.read_text()
    path.write_text(whole[:20])
    Journal(path, ASKED).add(one("a"))
    assert path.read_text().startswith(whole)
    assert [o.invariant for o in Journal(path, ASKED).outcomes] == ["a"]


def test_a_journal_of_another_check_is_refused_with_the_difference(tmp_path: Path) -> None:
    path = tmp_path / "j.jsonl"
    Journal(path, ASKED)
    with pytest.raises(UsageError, match=r"profile: 'quick' there, 'thorough' now"):
        Journal(path, {**ASKED, "profile": "thorough"})


@pytest.mark.parametrize(
    "text", ["no json\n", "no json", "[]\n", '{"attnbench journal": 1}\n{"a": 1}\n']
)
def test_a_foreign_file_is_refused_and_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"other"):
        Journal(path, ASKED)
    assert path.read_text() == text


def test_a_file_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"--resume .*: No such file or directory\. Name another"):
        Journal(tmp_path / "no" / "folder.jsonl", ASKED)


def test_of_several_seeds_the_first_bad_outcome_stands_for_all() -> None:
    found = [one("a", "failed", 2), one("a", "passed", 0), one("a", "failed", 1), one("b", seed=0)]
    first, second = over_seeds(found)
    assert (first.status, first.seed, first.cases) == ("failed", 1, 30)
    assert "on 2 of 3 seeds" in first.reason
    assert (second.status, second.cases) == ("passed", 10)
    (both,) = over_seeds([one("b", seed=0), one("b", seed=1)])
    assert (both.cases, both.reason) == (20, f"{second.reason}, on the first of 2 seeds")


def test_a_journal_knows_the_content_of_the_files_that_it_is_about(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("SPEC = 1\n")
    pairs = [(Address("SPEC", source=str(file)), "mine"), (Address("additive"), "additive")]
    before = digests(pairs)
    assert list(before) == [str(file)]
    file.write_text("SPEC = 2\n")
    assert digests(pairs) != before
