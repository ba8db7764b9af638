"""What Hypothesis does in a run: it draws, shrinks, keeps what failed, and tries it first."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from attnbench import Case, Invariant, InvariantViolation, Subject
from attnbench.checking import case_search
from attnbench.checking.profiles import PROFILES, Profile
from attnbench.checking.runner import run_invariant, seeded
from attnbench.strategies import cases
from attnbench.subject.lookup import resolve
from tests.checking.asked_cases import found, invariant, run


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run in, whose example database is used."""
    monkeypatch.chdir(tmp_path)
    settings.load_profile("default")
    yield tmp_path / ".hypothesis" / "examples"
    settings.load_profile("attnbench")


def test_what_a_scheduled_case_found_is_shrunk_in_every_field() -> None:
    one, _ = invariant(lambda case: case.kv_len >= 3 and case.mask != "none")
    case = found(run(one))
    assert case == Case((), 1, 3, 1, 1, 1, mask="boolean")


def test_what_took_too_long_to_shrink_is_not_called_the_smallest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(case_search, "_SECONDS", 0.0)
    one, _ = invariant(lambda case: case.kv_len >= 3 and case.mask != "none")
    outcome = run(one)
    assert found(outcome).kv_len >= 3
    assert outcome.failure is not None
    assert not outcome.failure.smallest


def test_what_only_a_drawn_case_finds_is_shrunk_too() -> None:
    one, _ = invariant(lambda case: case.q_len == 13 == case.kv_len)
    outcome = run(one, Profile("many", 900))
    assert found(outcome) == Case((), 13, 13, 1, 1, 1)
    assert outcome.failure is not None
    assert outcome.failure.smallest


def test_lengths_that_must_be_equal_shrink_together() -> None:
    one, _ = invariant(lambda case: case.q_len == case.kv_len > 2 and bool(case.lead))
    assert found(run(one)) == Case((1,), 3, 3, 1, 1, 1)


def test_shrinking_ends_after_some_cases_however_fast_the_machine_is() -> None:
    one, asked = invariant(lambda case: True)
    ids = itertools.count()
    endless = Invariant(
        name="some_property",
        check=lambda subject, case: one.check(subject, case.replace(seed=next(ids))),
        cases=lambda subject: cases(subject, leads=(3,)),
    )
    run(endless)
    assert len(asked) <= 301


@pytest.mark.parametrize(("most", "smallest"), [(1e3, 4), (5.0, 1)])
def test_what_looks_like_rounding_is_no_smaller_case_of_a_clear_error(
    most: float, smallest: int
) -> None:
    seen: list[Case] = []

    def checked(subject: Subject, case: Case) -> None:
        seen.append(case)
        if case.kv_len >= 4:
            raise InvariantViolation(quantity="output", got=1.0, expected=0.0, error=most)
        if any(case.kv_len >= 4 for case in seen):
            raise InvariantViolation(quantity="output", got=1.0, expected=0.0, error=1.4)

    assert found(run(Invariant(name="some_property", check=checked))).kv_len == smallest


def test_the_stored_case_is_tried_first_also_with_another_seed(kept: Path) -> None:
    one, asked = invariant(lambda case: case.kv_len == 7)
    first = found(run(one, seed=1))
    assert kept.is_dir()
    asked.clear()
    again = run(one, seed=2)
    assert (asked[0], found(again), again.cases) == (first, first, 1)
    assert again.failure is not None
    assert again.failure.replayed
    fresh = run(one, seed=1, shrink=False)
    assert fresh.failure is not None
    assert not fresh.failure.replayed


def test_a_stored_case_that_holds_by_now_is_forgotten(kept: Path) -> None:
    broken = [True]
    one, asked = invariant(lambda case: broken[0] and case.kv_len == 7)
    first = found(run(one))
    broken.clear()
    broken.append(False)
    asked.clear()
    outcome = run(one)
    assert (asked[0], outcome.status) == (first, "passed")
    asked.clear()
    assert outcome.reason == f"{run(one).reason}, 1 replayed that failed before"
    assert asked[0] != first


def test_a_stored_case_of_a_strategy_of_ones_own_is_tried_first(kept: Path) -> None:
    own = st.builds(Case, q_len=st.integers(1, 9), kv_len=st.integers(1, 9))
    one, asked = invariant(lambda case: case.kv_len > 5, lambda subject: own)
    first = found(run(one))
    assert first.kv_len == 6
    asked.clear()
    assert found(run(one, seed=3)) == asked[0] == first


def entries(kept: Path) -> dict[Path, bytes]:
    """What every file of a database holds."""
    return {path: path.read_bytes() for path in kept.rglob("*") if path.is_file()}


UNREADABLE = [b"\xff" * 40, b"0123456789" * 9, b"pickled once"]


@pytest.mark.parametrize("damage", UNREADABLE)
def test_what_cannot_be_read_in_the_database_is_left_there(
    kept: Path, damage: bytes, capfd: pytest.CaptureFixture[str]
) -> None:
    one, asked = invariant(lambda case: case.kv_len == 7)
    expected = found(run(one))
    before = entries(kept)
    foreign = {path.with_name("of another version"): damage for path in before}
    for path, held in foreign.items():
        path.write_bytes(held)
    asked.clear()
    outcome = run(one)
    assert (asked[0], found(outcome)) == (expected, expected)
    assert entries(kept) == {**before, **foreign}
    assert capfd.readouterr() == ("", "")


def test_a_database_that_cannot_be_written_changes_no_verdict(kept: Path) -> None:
    one, _ = invariant(lambda case: case.kv_len == 7)
    kept.parent.mkdir()
    kept.write_text("no folder")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert found(run(one)).kv_len == 7


def test_a_settings_profile_says_how_much_is_drawn_and_where_failures_are_kept(
    kept: Path,
) -> None:
    memory = InMemoryExampleDatabase()
    settings.register_profile("own", max_examples=7, database=memory)
    settings.load_profile("own")
    holds, _ = invariant(lambda case: False)
    assert run(holds).reason.endswith(", 7 drawn")
    fails, _ = invariant(lambda case: True)
    run(fails)
    assert memory.data
    assert not kept.exists()


def test_more_cases_are_drawn_where_few_are_scheduled() -> None:
    quick = PROFILES["quick"]
    (subject,) = resolve("dot")

    def drawn(space: Callable[[Subject], Any]) -> str:
        one = Invariant(name="some_property", check=lambda subject, case: None, cases=space)
        with seeded():
            return run_invariant(subject, one, quick).reason

    assert drawn(lambda subject: cases(subject)).endswith(f", {quick.drawn} drawn")
    few = cases(subject).filter(lambda case: 8 <= case.q_len <= 14)
    assert drawn(lambda subject: few) == f"0 scheduled, {2 * quick.quota} drawn"
    own = st.builds(Case, kv_len=st.integers(1, 99))
    assert drawn(lambda subject: own) == f"0 scheduled, {2 * quick.quota} drawn"
