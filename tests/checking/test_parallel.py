"""In which order invariants run in child processes, and what is said when one ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attnbench
from attnbench.checking.api import planned
from attnbench.checking.outcomes import COMPILING, CONTRACT, Outcome
from attnbench.checking.parallel import preload, run_checks
from attnbench.checking.works import apart, dealt, pieces, works_of
from attnbench.errors import OptionError, UnknownNameError
from attnbench.registry.address import Address, parse_address
from tests.cli_runs import HERE

NAMES = (CONTRACT, "weights_sum_to_one", "exported_equals_eager")
OPTIONS: dict[str, Any] = {"profile": "quick", "device": "cpu", "dtypes": None, "seed": None}


def outcomes(*targets: str, jobs: int = 1) -> list[Outcome]:
    pairs = [(parse_address(target), planned(target)[0][0].name) for target in targets]
    works = dealt(works_of(pairs, NAMES, late=COMPILING), jobs)
    return list(run_checks(works, OPTIONS, jobs=jobs, timeout_s=120.0, memory_gib=2.0))


@pytest.mark.slow
def test_what_compiles_runs_last_within_a_subject_and_over_all_of_them() -> None:
    order = [invariant.name for invariant in planned("dot")[1]]
    assert order[0] == CONTRACT
    late = [name in COMPILING for name in order]
    assert late == sorted(late)
    found = [(o.subject, o.invariant) for o in outcomes("dot", "scaled_dot")]
    assert [name for _, name in found[-2:]] == ["exported_equals_eager"] * 2
    assert len(found) == len(set(found)) == 6


@pytest.mark.slow
def test_a_broken_contract_holds_for_what_runs_later_too() -> None:
    found = {o.invariant: o for o in outcomes(f"{HERE}/bad_subjects.py:SHAPE")}
    assert found[CONTRACT].status == "failed"
    assert found["exported_equals_eager"].reason.startswith("not run: keeps_the_contract failed")


def test_a_subject_that_kills_its_process_has_an_outcome_for_what_runs_later_too() -> None:
    found = outcomes(f"{HERE}/bad_subjects.py:KILLS")
    assert [(o.invariant, o.status) for o in found] == [(name, "crashed") for name in NAMES]


def test_no_invariant_is_lost_when_one_subject_is_dealt() -> None:
    for names in (NAMES, NAMES[:1], NAMES[2:], ("a", *COMPILING), (CONTRACT, *COMPILING)):
        for jobs in (1, 2, 3):
            works = dealt(works_of([(Address("x"), "x")], names, late=COMPILING), jobs)
            run = [name for work in works for name in (*work.invariants, *work.late)]
            assert sorted(set(run)) == sorted(names)


def test_on_a_cluster_the_contract_is_first_and_what_compiles_is_next() -> None:
    for names in (NAMES, NAMES[:1], NAMES[1:], (CONTRACT, "a", "b", *COMPILING)):
        (first, *others) = apart(works_of([(Address("x"), "x")], names, late=COMPILING))
        assert len(first.invariants) == 1
        if CONTRACT in names:
            assert first.invariants == (CONTRACT,)
            assert others == []
        run = [name for one in (*pieces(first), *others) for name in one.invariants]
        compiled = [name in COMPILING for name in run]
        assert compiled == sorted(compiled, reverse=True)
        assert sorted((*first.invariants, *run)) == sorted(names)


def test_what_compiles_shares_its_process_with_nothing_and_others_share_theirs() -> None:
    many = [f"invariant {n}" for n in range(90)]
    (first,) = apart(works_of([(Address("x"), "x")], (CONTRACT, *many, *COMPILING), late=COMPILING))
    hands = [one.invariants for one in pieces(first)]
    alone, shared = hands[: len(COMPILING)], hands[len(COMPILING) :]
    assert alone == [(name,) for name in COMPILING]
    assert sorted(name for hand in shared for name in hand) == sorted(many)
    sizes = {len(hand) for hand in shared}
    assert max(sizes) - min(sizes) <= 1 < max(sizes)


def test_the_last_subjects_on_a_cluster_are_dealt_to_more_and_shorter_tasks() -> None:
    names = (CONTRACT, *(f"invariant {n}" for n in range(90)))
    for count, long in ((1, 0), (40, 0), (41, 1), (100, 60), (1000, 800)):
        works = apart(works_of([(Address(f"x{n}"), f"x{n}") for n in range(count)], names))
        longest = [max(len(piece.invariants) for piece in pieces(work)) for work in works]
        assert longest == [18] * long + [2] * (count - long)


def test_a_contract_that_failed_is_told_to_what_is_left_in_its_process() -> None:
    (work,) = works_of([(Address("x"), "x")], NAMES, late=COMPILING)
    (again,) = apart([replace(work, broken=True)])
    assert again.invariants == work.invariants
    assert not again.parts


@pytest.mark.parametrize(
    ("address", "error"),
    [
        ("multi_head(scoring=additve)", UnknownNameError),
        ("multi_head(scoring=soft)", OptionError),
        ("encoder_attention(scoring=additve)", UnknownNameError),
    ],
)
def test_a_wrong_value_of_an_option_is_an_error_and_no_finding(
    address: str, error: type[Exception]
) -> None:
    with pytest.raises(error, match=r"\w+\(scoring=\w+\): "):
        attnbench.check(address, profile="quick", invariants=[CONTRACT])


def test_the_compiler_is_not_waited_for_where_few_subjects_are_named() -> None:
    compiler = {"torch._dynamo", "torch._inductor.compile_fx"}
    for few in (1, 2):
        assert not compiler & set(preload(few))
    for many in (3, None):
        assert compiler < set(preload(many))
        assert compiler < set(preload(many, ["weights_sum_to_one", COMPILING[0]]))
        assert "torch._inductor.compile_fx" not in preload(many, ["weights_sum_to_one"])


@pytest.mark.slow
def test_a_contract_that_was_recorded_as_failed_holds_for_what_is_left() -> None:
    target = f"{HERE}/bad_subjects.py:SHAPE"
    works = works_of([(parse_address(target), planned(target)[0][0].name)], NAMES, late=COMPILING)
    limits: dict[str, Any] = {"jobs": 1, "timeout_s": 120.0, "memory_gib": 2.0}
    whole = [replace(o, seconds=0.0) for o in run_checks(works, OPTIONS, **limits)]
    assert whole[0].status == "failed"
    for count in (1, 2):  # ended before the others, and before what compiles
        found = run_checks(works, OPTIONS, **limits, recorded=whole[:count])
        assert [replace(o, seconds=0.0) for o in found] == whole[count:]
