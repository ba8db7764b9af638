"""The learning experiment: tasks, runs, statistics, and the command."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_classroom import intervals, run_files
from attnbench_classroom.tasks import LENGTH, TASKS
from attnbench_classroom.training import runs, unfit

from attnbench.testing import resolve
from tests.cli_runs import run

pytestmark = pytest.mark.slow


def rows(task: str) -> list[tuple[list[int], ...]]:
    drawn = TASKS[task](40, torch.Generator().manual_seed(0))
    parts = (drawn.query, drawn.key, drawn.value, drawn.wanted)
    return list(zip(*(part.tolist() for part in parts), strict=True))


def test_content_asks_for_the_value_at_the_querys_key() -> None:
    for query, key, value, wanted in rows("content"):
        at = dict(zip(key, value, strict=True))
        assert wanted == [at[symbol] for symbol in query]


def test_position_asks_for_the_value_at_the_mirrored_place() -> None:
    for _, _, value, wanted in rows("position"):
        assert wanted == value[::-1]


def test_difference_asks_for_a_value_as_far_away_as_the_query_says() -> None:
    for query, _, value, wanted in rows("difference"):
        assert wanted == [value[place + offset - 2] for place, offset in enumerate(query)]


def test_alignment_asks_for_the_key_in_the_querys_half() -> None:
    half = LENGTH // 2
    for query, key, value, wanted in rows("alignment"):
        assert sorted(key[:half]) == sorted(key[half:]) == list(range(half))
        for place, symbol in enumerate(query):
            start = place // half * half
            assert wanted[place] == value[start + key[start : start + half].index(symbol)]


def trained(subject: str, size: int = 32, seeds: Any = (0,), steps: int = 60) -> list[Any]:
    return list(runs(subject, "content", size, seeds, steps=steps, batch=32))


def test_a_score_that_can_look_up_learns_to_and_average_pooling_does_not() -> None:
    (scaled_dot,), (average,) = trained("scaled_dot"), trained("average")
    assert scaled_dot["accuracy"] > 0.8 > 0.5 > average["accuracy"]
    assert scaled_dot["step_s"] > 0
    assert [step for step, _ in scaled_dot["curve"]] == list(range(0, 61, 5))


def test_the_same_seed_learns_the_same_and_another_something_else() -> None:
    one, other = (trained("dot", seeds=(3, 4), steps=12) for _ in range(2))
    assert [run["curve"] for run in one] == [run["curve"] for run in other]
    assert one[0]["curve"] != one[1]["curve"]


def test_a_subject_of_other_sizes_gives_its_reason() -> None:
    assert "L3" in str(unfit(resolve("structured_self")[0], 16))
    (found,) = trained("structured_self")
    assert "L3" in found["unfit"]
    assert intervals.points([found]) == []


def test_an_interval_is_students_and_of_one_value_infinite() -> None:
    mean, half = intervals.interval([0.4, 0.5, 0.6])
    assert (mean, half) == pytest.approx((0.5, 4.3027 * 0.1 / 3**0.5), rel=1e-4)
    assert intervals.interval([0.4]) == (0.4, math.inf)


def made(subject: str, seed: int, *accuracies: float) -> dict[str, Any]:
    curve = [[10 * i, accuracy] for i, accuracy in enumerate(accuracies)]
    point = {"task": "content", "subject": subject, "size": 2, "seed": seed, "steps": 20}
    cost = {"batch": 32, "step_s": 1e-3, "parameters": 4}
    return point | cost | {"curve": curve, "accuracy": accuracies[-1]}


def test_the_mean_over_a_curve_is_its_area() -> None:
    assert intervals.learnt(made("a", 0, 0.0, 1.0, 1.0)) == pytest.approx(0.75)


def test_half_a_line_of_a_killed_process_is_left_out_and_written_over(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    run_files.append(path, made("a", 0, 0.5, 1.0))
    with path.open("a") as file:
        file.write('{"task": "con')
    assert len(run_files.read(path)) == 1
    run_files.append(path, made("a", 1, 0.5, 1.0))
    run_files.append(path, made("a", 1, 0.5, 0.9))  # by a command that ran at the same time
    assert [found["seed"] for found in run_files.read(path)] == [0, 1]


def test_runs_that_stand_in_the_file_are_not_repeated(tmp_path: Path) -> None:
    path, picture = tmp_path / "learn.jsonl", tmp_path / "learn.svg"
    common = ("learn", "dot", "average", "--task", "content", "--size", "2", "--steps", "12")
    first = run(*common, "--seeds", "1", "-o", str(path), "--json")
    assert first.code == 0
    before = path.read_text().splitlines()
    assert len(before) == 2
    again = run(*common, "--seeds", "2", "-o", str(path), "--figure", str(picture))
    assert again.code == 0
    assert "±" in again.out
    after = path.read_text().splitlines()
    assert after[:2] == before
    assert sorted(json.loads(line)["seed"] for line in after) == [0, 0, 1, 1]
    assert "learning curves" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--task", "contents"], "--task contents: there is no such task; there are content"),
        (["--figure", "x.txt"], "a picture ends in .png, .svg or .pdf"),
        (["-o", "cli_runs.py"], "line 1 is no run of attnbench learn"),
        (["scaled_dt"], "Did you mean 'scaled_dot'"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], says: str, tmp_path: Path) -> None:
    place = [] if "-o" in arguments else ["-o", str(tmp_path / "learn.jsonl")]
    result = run("learn", *arguments, *place, "--steps", "12", "--size", "2", "--seeds", "1")
    assert result.code == 2
    assert says in result.err
    assert len(result.err.splitlines()) == 1
