"""The invariants on caches tell right layers from those with one mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from attnbench_plugins.properties.caches.player import Player
from attnbench_plugins.properties.caches.program import Program, shrunk, steps
from attnbench_plugins.properties.caches.search import keep, read
from attnbench_plugins.properties.caches.stage import stage_of
from attnbench_plugins.properties.layers import cache_operations, splits
from attnbench_zoo.right.layers import GROWING, RINGED, UNCACHED
from hypothesis.database import InMemoryExampleDatabase
from torch import Tensor, nn

import attnbench
from attnbench import CacheSpec, LayerSpec
from attnbench.cases.case import Case
from attnbench.checking.check_report import failure_text
from attnbench.checking.hypothesis_engine import Failures
from attnbench.subject.layer import LayerSubject
from attnbench.subject.lookup import resolve
from tests.cli_runs import python
from tests.invariant_runs import by_name, run, zoo


@pytest.mark.parametrize("invariant", by_name(cache_operations, splits))
def test_a_right_cache_is_not_accused(invariant: str) -> None:
    found = run(RINGED, invariant, shrink=True)
    assert found.status == "passed", found.reason


@pytest.mark.slow
def test_a_failure_prints_a_short_script_that_was_run(tmp_path: Path) -> None:
    names = ["selected_rows_go_on_as_their_sequences"]
    report = attnbench.check(zoo("one_name_selected"), profile="quick", invariants=names)
    (found,) = report.outcomes
    assert found.reproduce is not None
    assert found.reproduce.count(" = module") <= 5
    script = tmp_path / "script.py"
    script.write_text(found.reproduce)
    done = python(script)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr
    assert done.stdout.startswith("output =")


def test_a_failing_program_is_told_in_words() -> None:
    found = run(zoo("one_name_selected"), "selected_rows_go_on_as_their_sequences", shrink=True)
    assert found.failure is not None
    assert found.failure.program == "begin 2 rows, append 1, select rows [1], append 1"
    assert f"  in the calls: {found.failure.program}\n" in failure_text(found)


class Plain(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)

    def forward(self, hidden: Tensor, cache: object = None) -> Tensor:
        return self.linear(hidden)


def broken_new(module: nn.Module, batch_size: int) -> object:
    raise RuntimeError("no memory for 1 row")


@pytest.mark.parametrize(
    ("cache", "told"),
    [
        (CacheSpec(new=broken_new), "plain raised on a legal input: Runtime"),
        (CacheSpec(new=lambda module, rows: None), "new of the cache of plain gave None"),
    ],
)
def test_a_cache_that_cannot_be_had_is_told_once(cache: CacheSpec, told: str) -> None:
    spec = LayerSpec(name="plain", make=Plain, accepts=("cache",), cache=cache)
    found = run(spec, "calls_may_be_cut_anywhere")
    assert found.status == "failed"
    assert told in found.reason
    assert run(spec, "calls_without_cache_leave_none").status == "skipped"


def test_a_failing_program_is_made_shorter() -> None:
    program = steps(3, 7, (2, 0), 5, -9, 4, pads=(0, 20, 1))

    def fails(candidate: Program) -> bool:
        return any(step.kind == "crop" for step in candidate)

    assert shrunk(program, fails) == steps(1, "0")


def test_a_program_is_kept_and_found_again() -> None:
    kept, program = (
        Failures(InMemoryExampleDatabase()),
        steps(3, 7, (2, 0), 5, -9, 4, pads=(0, 20, 1)),
    )
    assert kept.again("key", read, lambda _: True) is None
    keep(kept, "key", program)
    assert kept.again("key", read, lambda _: True) == program
    assert kept.again("another key", read, lambda _: True) is None


def played(program: Program) -> Program:
    """The steps that are played, which are legal."""
    (subject,) = resolve(GROWING)
    assert isinstance(subject, LayerSubject)
    player = Player(stage_of(subject, subject.legal(Case((3,), 4, 4, 8, 8, 8))), "mixed")
    for step in program:
        player.play(step)
    return tuple(player.program)


def test_a_program_keeps_within_the_capacity() -> None:
    program = played(steps(2, 30, 30, 30, -70, 9))
    assert [step.count for step in program] == [2, 30, 30, 4, 64]


def test_rows_that_are_not_there_are_not_selected() -> None:
    assert played(steps(2, 1, (3, 1, 2), (2,))) == steps(2, 1, (1,))


def test_a_cache_is_looked_at_without_threads_of_random_numbers() -> None:
    before = torch.random.get_rng_state()
    run(UNCACHED, "calls_without_cache_leave_none")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_cache_that_can_only_be_emptied_is_held_to_that() -> None:
    spec = zoo("crop_to_nothing_removes_nothing")

    def crop(cache: object, length: int) -> None:
        if length:
            raise NotImplementedError("only to nothing")
        spec.cache.crop(cache, length)

    emptied = replace(spec, cache=replace(spec.cache, crop=crop))
    found = run(emptied, "cropped_slots_are_forgotten", shrink=True)
    assert found.status == "failed"
    assert found.failure is not None
    assert "crop to 0" in found.failure.program
