"""Verdicts on simulated pairs and processes: how often they are wrong, and what they see."""

from __future__ import annotations

import math

import numpy as np
import pytest
from attnbench_plugins.comparing.verdict import (
    LOOKS,
    Verdict,
    judge_pairs,
)
from numpy.typing import NDArray


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


@pytest.mark.parametrize("pairs", [2, 3, 5, 8])
def test_of_pairs_too_few_for_the_share_of_error_nothing_is_concluded(pairs: int) -> None:
    for seed in range(40):
        noise = np.random.default_rng(seed).normal(0.0, 0.08, size=(pairs, 1))
        assert judge_pairs(noise, alpha=0.005)[0].verdict == "ambiguous"
