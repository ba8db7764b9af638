"""The example on learning: tasks, training, and intervals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from attnbench.testing import resolve
from examples.learning import TASKS, Budget, interval, learn, main, unfit


def drawn(task: str) -> tuple[torch.Tensor, ...]:
    return TASKS[task].draw(50, torch.Generator().manual_seed(0))


def test_lookup_asks_for_the_value_at_the_querys_key() -> None:
    for query, key, value, wanted in zip(*drawn("lookup"), strict=True):
        at = dict(zip(key.tolist(), value.tolist(), strict=True))
        assert wanted.tolist() == [at[symbol] for symbol in query.tolist()]


def test_the_commonest_symbol_is_one_that_no_other_outnumbers() -> None:
    for query, _, _, wanted in zip(*drawn("commonest"), strict=True):
        symbols = query.tolist()
        assert symbols.count(int(wanted[0])) == max(map(symbols.count, symbols))


def test_a_score_that_can_look_up_learns_to_and_average_pooling_does_not() -> None:
    budget = Budget(steps=150)
    scaled_dot, average = (
        learn(resolve(name)[0], "lookup", 0, budget) for name in ("scaled_dot", "average")
    )
    assert scaled_dot.accuracy > 0.9
    assert average.accuracy < 0.6
    assert scaled_dot.time_s > 0
    assert scaled_dot.peak_bytes > average.peak_bytes > 0


def test_the_same_seed_learns_the_same() -> None:
    one, other = (learn(resolve("dot")[0], "reverse", 3, Budget(steps=5)) for _ in range(2))
    assert one.accuracy == other.accuracy


def test_a_subject_of_other_sizes_is_left_out_with_a_reason() -> None:
    (subject,) = resolve("structured_self")
    assert "L3" in str(unfit(subject))
    assert unfit(resolve("structured_self(rows=8)")[0]) is None


def test_an_interval_is_students() -> None:
    mean, half = interval([0.4, 0.5, 0.6])
    assert mean == pytest.approx(0.5)
    assert half == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)
    assert interval([0.4]) == (0.4, None)


def test_it_prints_a_table_and_draws_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "learn.png"
    options = ["--task", "previous", "--seeds", "2", "--steps", "3", "--out", str(picture)]
    main(["dot", "structured_self", *options])
    printed = capsys.readouterr().out
    assert "dot" in printed
    assert "±" in printed
    assert "structured_self is left out: needs" in printed
    assert picture.read_bytes().startswith(b"\x89PNG")
