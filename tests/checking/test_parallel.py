"""In which order invariants run in child processes, and what is said when one ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import attnbench
from attnbench.checking import parallel
from attnbench.checking.outcomes import COMPILING, FIRST, KEEPS_CONTRACT, Outcome
from attnbench.checking.parallel import preload, run_checks
from attnbench.checking.plan import planned
from attnbench.checking.work import Work, shared_out, works_of
from attnbench.errors import OptionError, UnknownNameError
from attnbench.processes.pool import Event, Task
from attnbench.registry.address import Address, parse_address
from tests.cli_runs import HERE

NAMES = (KEEPS_CONTRACT, "weights_sum_to_one", "fake_tensors_tell_the_shape")
OPTIONS: dict[str, Any] = {"profile": "quick", "device": "cpu", "dtypes": None, "seed": None}


def outcomes(*targets: str, jobs: int = 1) -> list[Outcome]:
    pairs = [(parse_address(target), planned(target)[0][0].name) for target in targets]
    works = shared_out(works_of(pairs, NAMES), jobs)
    return list(run_checks(works, OPTIONS, jobs=jobs, timeout_s=120.0, memory_gib=2.0))


@pytest.mark.slow
def test_what_compiles_runs_last_within_a_subject() -> None:
    order = [invariant.name for invariant in planned("dot")[1]]
    assert order[0] == KEEPS_CONTRACT
    early = [name in FIRST for name in order[1:]]
    assert any(early)
    assert early == sorted(early, reverse=True)
    late = [name in COMPILING for name in order]
    assert late == sorted(late)
    found = [(o.subject, o.invariant) for o in outcomes("dot", "scaled_dot")]
    assert [name for _, name in (found[2], found[5])] == ["fake_tensors_tell_the_shape"] * 2
    assert len(found) == len(set(found)) == 6


@pytest.mark.slow
def test_a_broken_contract_holds_for_what_runs_later_too() -> None:
    found = {o.invariant: o for o in outcomes(f"{HERE}/bad_subjects.py:SHAPE")}
    assert found[KEEPS_CONTRACT].status == "failed"
    assert found["fake_tensors_tell_the_shape"].reason.startswith(
        "not run: keeps_the_contract failed"
    )


def test_a_subject_that_kills_its_process_has_an_outcome_for_what_runs_later_too() -> None:
    found = outcomes(f"{HERE}/bad_subjects.py:KILLS")
    assert [(o.invariant, o.status) for o in found] == [(name, "crashed") for name in NAMES]


def test_no_invariant_is_lost_when_one_subject_is_shared_out() -> None:
    for names in (NAMES, NAMES[:1], NAMES[2:], ("a", *COMPILING), (KEEPS_CONTRACT, *COMPILING)):
        for jobs in (1, 2, 3):
            works = shared_out(works_of([(Address("x"), "x")], names), jobs)
            run = [name for work in works for name in work.invariants]
            assert sorted(set(run)) == sorted(names)


def test_a_work_runs_the_contract_first_and_what_compiles_last_however_it_is_asked_for() -> None:
    (work,) = works_of([(Address("x"), "x")], (*COMPILING, "a", KEEPS_CONTRACT))
    assert work.invariants == (KEEPS_CONTRACT, "a", *COMPILING)


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
        attnbench.check(address, profile="quick", invariants=[KEEPS_CONTRACT])


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
    works = works_of([(parse_address(target), planned(target)[0][0].name)], NAMES)
    limits: dict[str, Any] = {"jobs": 1, "timeout_s": 120.0, "memory_gib": 2.0}
    whole = [replace(o, seconds=0.0) for o in run_checks(works, OPTIONS, **limits)]
    assert whole[0].status == "failed"
    for count in (1, 2):  # ended before the others, and before what compiles
        found = run_checks(works, OPTIONS, **limits, recorded=whole[:count])
        assert [replace(o, seconds=0.0) for o in found] == whole[count:]


def test_what_a_lost_device_left_unchecked_runs_in_another_process_and_then_is_said() -> None:
    """A process whose device is unusable ends as if it were done."""
    left = ("weights_sum_to_one", "finite_at_extremes")
    work = Work(parse_address("scaled_dot"), left, "scaled_dot", restarts=1)
    event = Event(Task("0", "", {"target": "scaled_dot"}), "done")
    again: list[Work] = []
    found = list(parallel._outcomes(event, {"0": work}, lambda number, work: again.append(work)))
    assert found == []
    assert again == [replace(work, restarts=0)]
    found = list(parallel._outcomes(event, {"0": again[0]}, lambda number, work: None))
    assert [(o.invariant, o.status) for o in found] == [(name, "crashed") for name in left]
    assert found[0].reason == (
        "not run: 2 processes of the subject ended, the last after one that made its device "
        "unusable"
    )
