"""Verdicts on simulated pairs and processes: how often they are wrong, and what they see."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from numpy.typing import NDArray

from attnbench.benchmark.comparing.verdict import (
    LOOKS,
    Sides,
    Verdict,
    judge_pairs,
    judge_runs,
    taken_in_turn,
)


def table(
    pairs: int, effects: list[float], *, spread: float = 0.03, shared: float = 0.0, seed: int = 0
) -> NDArray[np.float64]:
    """Logs of ratios, with heavy-tailed noise of each row, and noise that a pair's rows share."""
    chance = np.random.default_rng(seed)
    own = spread * chance.standard_t(4, size=(pairs, len(effects))) / math.sqrt(2)
    return np.log1p(np.array(effects)) + own + shared * chance.normal(size=(pairs, 1))


def test_a_share_of_the_error_is_stated_for_each_look() -> None:
    assert list(LOOKS) == [15, 30, 60]
    assert sum(LOOKS.values()) == pytest.approx(0.02)


@pytest.mark.parametrize("shared", [0.0, 0.03])
def test_unchanged_tables_are_called_no_more_often_than_said(shared: float) -> None:
    """Without a margin, which would call fewer."""
    wrong = 0
    for seed in range(300):
        found = judge_pairs(table(15, [0.0] * 8, shared=shared, seed=seed), alpha=0.05, margin=0.0)
        wrong += any(row.verdict in ("faster", "slower") for row in found)
    assert wrong <= 25  # 15 are expected, and 25 or more come up in 1 of 100


def test_five_percent_are_seen_in_30_pairs_of_a_busy_machine() -> None:
    seen = 0
    for seed in range(60):
        first, *others = judge_pairs(table(30, [0.05, 0.0, 0.0], seed=seed), alpha=LOOKS[30])
        seen += first.verdict == "slower"
        assert all(row.verdict in ("same", "ambiguous") for row in others)
    assert seen >= 59


def test_faster_is_the_other_way_round() -> None:
    values = table(30, [0.08])
    (slower,), (faster,) = judge_pairs(values, alpha=0.01), judge_pairs(-values, alpha=0.01)
    assert (slower.verdict, faster.verdict) == ("slower", "faster")
    assert faster.effect == pytest.approx(1 / (1 + slower.effect) - 1)


def test_a_certain_change_within_the_margin_has_a_word_of_its_own() -> None:
    for effect, verdict in ((0.01, "slightly slower"), (-0.01, "slightly faster"), (0.0, "same")):
        (found,) = judge_pairs(table(30, [effect], spread=0.005), alpha=0.01, margin=0.03)
        assert found.verdict == verdict
    (found,) = judge_pairs(table(30, [0.01], spread=0.005), alpha=0.01, margin=0.002)
    assert found.verdict == "slower"


def test_the_interval_excludes_zero_exactly_where_a_change_is_called() -> None:
    """In tables of changed rows and skewed noise, where the mean and the median disagree most."""
    chance = np.random.default_rng(0)
    for seed in range(300):
        effects = list(chance.choice([0.0, 0.01, 0.02, 0.04], size=3))
        values = table(15, effects, seed=seed) + 0.03 * chance.exponential(size=(15, 3)) - 0.03
        for found in judge_pairs(values, alpha=0.05):
            assert_consistent(found)


@pytest.mark.slow
def test_in_3000_tables_no_interval_contradicts_its_verdict_and_few_are_false_alarms() -> None:
    """Through all looks; the stated rate is 2 % of tables, of which 60 +- 8 in 3,000 are chance."""
    wrong = 0
    for seed in range(3000):
        values = table(60, [0.0] * 3, shared=0.01, seed=seed)
        left, called = [0, 1, 2], False
        for look, alpha in LOOKS.items():
            rows = judge_pairs(values[:look, left], alpha=alpha, margin=0.0)
            for found in rows:
                assert_consistent(found)
                called |= found.verdict in ("faster", "slower")
            left = [n for n, found in zip(left, rows, strict=True) if found.verdict == "ambiguous"]
            if not left:
                break
        wrong += called
    assert wrong <= 80


def assert_consistent(found: Verdict) -> None:
    assert (found.verdict.endswith("slower")) == (found.low > 0)
    assert (found.verdict.endswith("faster")) == (found.high < 0)
    assert found.low <= found.effect <= found.high


def test_what_is_too_noisy_is_ambiguous_and_says_what_it_would_have_seen() -> None:
    (found,) = judge_pairs(table(15, [0.02], spread=0.1), alpha=0.005)
    assert found.verdict == "ambiguous"
    assert found.low < 0 < found.high
    assert found.visible > 0.08


def test_what_would_be_seen_is_seen() -> None:
    (found,) = judge_pairs(table(30, [0.0], spread=0.02, seed=5), alpha=0.005)
    seen = sum(
        judge_pairs(table(30, [found.visible], spread=0.02, seed=s), alpha=0.005)[0].verdict
        == "slower"
        for s in range(100)
    )
    assert seen >= 85


def test_more_rows_widen_every_interval() -> None:
    values = table(15, [0.0] * 20)
    alone, among = judge_pairs(values[:, :1], alpha=0.01)[0], judge_pairs(values, alpha=0.01)[0]
    assert among.high - among.low > alone.high - alone.low


def test_of_one_pair_nothing_is_concluded() -> None:
    (found,) = judge_pairs(np.array([[0.5]]), alpha=0.01)
    assert found.verdict == "ambiguous"
    assert found.visible == math.inf


def test_identical_values_of_zero_are_same() -> None:
    (found,) = judge_pairs(np.zeros((15, 1)), alpha=0.005)
    assert (found.verdict, found.effect) == ("same", 0.0)


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
def test_of_pairs_too_few_for_the_share_of_error_nothing_is_concluded(pairs: int) -> None:
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0.0, 0.08, size=(pairs, 1))
        assert judge_pairs(noise, alpha=0.005)[0].verdict == "ambiguous"


QUIET = (1.0, 1.004, 0.997, 1.002, 0.999)


def judged_runs(
    generator: np.random.Generator, change: float, sd: float, tables: int
) -> list[Verdict]:
    """Verdicts on tables of ten rows whose processes vary by ``sd``, B slower by ``change``."""
    found = []
    for _ in range(tables):
        rows = []
        for _ in range(10):
            a, b = (np.exp(generator.normal(0, sd, 5)) for _ in range(2))
            rows.append(Sides(tuple(a), tuple(b * (1 + change))))
        found += judge_runs(rows)
    return found


@pytest.mark.parametrize("sd", [0.003, 0.02, 0.1])
def test_unchanged_code_is_called_faster_or_slower_in_under_one_row_of_two_hundred(
    sd: float,
) -> None:
    found = judged_runs(np.random.default_rng(1), 0.0, sd, 100)
    counts = Counter(v.verdict for v in found)
    assert counts["faster"] + counts["slower"] <= 5, counts


def test_a_quiet_machine_sees_10_percent_in_95_of_100() -> None:
    found = judged_runs(np.random.default_rng(2), 0.1, 0.005, 50)
    assert sum(v.verdict == "slower" for v in found) >= 0.95 * len(found)


def test_the_verdict_of_b_against_a_is_that_of_a_against_b_turned_round() -> None:
    slow = tuple(1.2 * t for t in QUIET)
    (forth,), (back,) = (
        judge_runs([Sides(QUIET, slow)]),
        judge_runs([Sides(slow, QUIET)]),
    )
    assert (forth.verdict, back.verdict) == ("slower", "faster")
    assert math.isclose((1 + forth.effect) * (1 + back.effect), 1.0)
    assert forth.low < 0.2 < forth.high


def test_four_processes_a_side_conclude_nothing() -> None:
    (found,) = judge_runs([Sides(QUIET[:4], tuple(2 * t for t in QUIET[:4]))])
    assert found.verdict == "ambiguous"
    assert "at least 5" in found.reason
    assert found.visible == math.inf  # so that no slowdown is promised to be seen


def test_one_process_a_side_is_ambiguous_and_could_have_seen_nothing() -> None:
    (found,) = judge_runs([Sides((1.0,), (3.0,))])
    assert found.verdict == "ambiguous"
    assert found.visible == math.inf


def test_same_is_said_only_if_the_whole_interval_lies_within_the_margin() -> None:
    row = Sides(QUIET, QUIET)
    assert judge_runs([row], margin=0.05)[0].verdict == "same"
    assert judge_runs([row], margin=0.001)[0].verdict == "ambiguous"


def test_what_would_be_seen_in_runs_is_beyond_the_margin() -> None:
    steady = tuple(1.0 + 1e-4 * n for n in range(8))
    (found,) = judge_runs([Sides(steady, steady)], margin=0.05)
    assert found.visible == pytest.approx(0.05, abs=0.001)
    for change, verdict in ((0.02, "slightly slower"), (found.visible, "slower")):
        slow = tuple((1 + change) * t for t in steady)
        assert judge_runs([Sides(steady, slow)], margin=0.05)[0].verdict == verdict


def test_runs_one_after_the_other_have_to_beat_the_drift_between_runs() -> None:
    slow = tuple(1.08 * t for t in QUIET)
    turned, apart = (
        judge_runs([Sides(QUIET, slow, alternated=turns)])[0] for turns in (True, False)
    )
    assert turned.verdict == "slower"
    assert apart.verdict == "ambiguous"
    assert apart.visible > turned.visible


def test_more_rows_of_runs_widen_every_interval() -> None:
    row = Sides(QUIET, QUIET)
    alone, among = judge_runs([row])[0], judge_runs([row] * 50)[0]
    assert among.high > alone.high


def test_processes_alternate_only_if_the_sides_change_places_often() -> None:
    assert taken_in_turn([0, 2, 4], [1, 3, 5])
    assert not taken_in_turn([0, 1, 2], [3, 4, 5])
