"""The examples: what they claim holds, on seeds other than the ones they show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from examples import local_scaling, questions, regression, translation


@pytest.mark.parametrize("seed", range(4))
def test_each_regression_is_closer_to_the_truth_than_the_one_before(seed: Any) -> None:
    errors = [fit.error for fit in regression.fits(seed)[-1]]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < errors[0] / 4


def test_learning_the_bandwidth_sharpens_the_weights() -> None:
    average, fixed, learned = (fit.weights.amax(-1).mean() for fit in regression.fits(1)[-1])
    assert average < fixed < learned / 2


def test_average_pooling_is_the_mean_of_the_samples() -> None:
    _, y, _, (average, *_) = regression.fits(0)
    torch.testing.assert_close(average.curve, y.mean().expand_as(average.curve))


def test_regression_equals_the_formula_of_nadaraya_and_watson() -> None:
    x, y, at, (_, fixed, _) = regression.fits(0)
    kernel = torch.exp(-0.5 * (at.unsqueeze(-1) - x) ** 2)
    torch.testing.assert_close(fixed.curve, (kernel @ y) / kernel.sum(-1))


@pytest.mark.parametrize(("form", "steps"), [("additive", 120), ("concat_combine", 280)])
def test_a_translator_learns_to_reverse_and_reads_backwards(form: Any, steps: Any) -> None:
    trained = translation.train("reverse", form, steps=steps, seed=1)
    untrained = translation.Translator(form).eval()
    assert translation.accuracy(untrained, "reverse", torch.Generator().manual_seed(1)) == 0
    assert trained.accuracy > 0.5
    written, weights = translation.translate(trained.model, "31415926", 8)
    assert written[:3] == "629"
    centre = weights @ torch.arange(8.0)  # where each step looks, on average
    assert torch.corrcoef(torch.stack([centre, torch.arange(8.0)]))[0, 1] < -0.9


@pytest.mark.parametrize("task", ["reverse", "sort", "dates"])
def test_targets_are_what_their_task_says(task: Any) -> None:
    for given, wanted in zip(
        *translation.pairs(task, 50, torch.Generator().manual_seed(0)), strict=True
    ):
        if task == "dates":
            day, month, year = given.split()
            number = translation.MONTHS.index(month) + 1
            assert wanted == f"{year}-{number:02}-{int(day):02}"
        else:
            assert wanted == "".join(sorted(given) if task == "sort" else reversed(given))


def test_additive_and_scaled_dot_give_other_weights_on_the_same_keys() -> None:
    additive, scaled_dot = questions.same_keys(seed=3)
    assert additive.shape == scaled_dot.shape == (2, 10)
    assert (additive - scaled_dot).abs().max() > 0.05


def test_sizes_that_differ_are_scored_by_matrix_products_alone() -> None:
    assert questions.matrix_products_alone(5, 9) < 1e-12


def test_the_vector_sum_ignores_the_query_and_the_dot_product_does_not() -> None:
    assert questions.query_dependence("vector_sum") < 1e-6
    assert questions.query_dependence("dot") > 0.1


def test_leaving_out_the_scale_kills_the_gradient_of_the_softmax() -> None:
    small, large = 4, 1024
    dot = [questions.gradient_of_softmax("dot", size) for size in (small, large)]
    scaled = [questions.gradient_of_softmax("scaled_dot", size) for size in (small, large)]
    assert dot[1] < dot[0] / 3
    assert abs(scaled[1] - scaled[0]) < 0.1 * scaled[0]


def test_local_memory_grows_with_the_length_and_not_with_its_square() -> None:
    lengths = (256, 512, 1024)
    for name in ("local_predictive", "key_value"):
        peaks = [float(local_scaling.measure(name, length, repeats=1)[1]) for length in lengths]
        assert abs(local_scaling.growth(lengths, peaks) - 1.0) < 0.15


@pytest.mark.parametrize(
    "draw",
    [regression.draw, questions.draw_weights, questions.draw_gradients],
    ids=["regression", "weights", "gradients"],
)
def test_pictures_are_drawn(draw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    draw(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
