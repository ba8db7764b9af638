"""The JavaScript of the page to play with, held equal to the references in Python."""

from __future__ import annotations

import json
import math
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from py_mini_racer import MiniRacer

import attnbench

PAGE = Path(__file__).resolve().parents[1] / "page"
SCORINGS = sorted(
    path.name.removesuffix(".py")
    for path in files("attnbench_plugins.scorings").iterdir()
    if path.name.endswith(".py") and not path.name.startswith("_")
)


@pytest.fixture(scope="module")
def js() -> MiniRacer:
    engine = MiniRacer()
    engine.eval((PAGE / "scores.js").read_text(encoding="utf-8"))
    return engine


def call(js: MiniRacer, function: str, *arguments: Any) -> Any:
    given = ", ".join(json.dumps(argument) for argument in arguments)
    return json.loads(js.eval(f"JSON.stringify({function}({given}))"))


def parameters_of(module: Any) -> dict[str, Any]:
    found = {name: tensor.tolist() for name, tensor in module.state_dict().items()}
    return found | ({"scale": module.scale} if hasattr(module, "scale") else {})


def test_the_page_has_every_built_in_scoring_function(js: MiniRacer) -> None:
    assert (
        sorted(json.loads(js.eval("JSON.stringify(Object.keys(attention.scorings))"))) == SCORINGS
    )


@pytest.mark.parametrize("name", SCORINGS)
def test_scores_equal_the_reference(js: MiniRacer, name: str) -> None:
    spec: Any = attnbench.get(name)
    for seed, (query_size, key_size) in enumerate([(1, 1), (2, 2), (7, 7), (3, 5), (32, 32)]):
        if spec.equal_sizes and query_size != key_size:
            continue
        torch.manual_seed(seed)
        module = spec.make(query_size, key_size).double()
        for parameter in module.parameters():  # biases are 0 when they are made
            parameter.data += 0.1 * torch.randn_like(parameter)
        query, key = (torch.randn(3, n).double().tolist() for n in (query_size, key_size))
        found = call(js, "attention.scores", name, parameters_of(module), query, key)
        for q, row in zip(query, found, strict=True):
            for k, score in zip(key, row, strict=True):
                assert score == pytest.approx(spec.reference(module, q, k), rel=1e-12, abs=1e-12)


def test_weights_equal_the_softmax_of_the_references(js: MiniRacer) -> None:
    softmax = import_module("attnbench_plugins._floats").softmax
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        row = (50 * torch.randn(6, generator=generator)).tolist()
        may = (torch.rand(6, generator=generator) < 0.5).tolist()
        found = call(js, "attention.softmax", row, may, None)
        assert found == pytest.approx(softmax(row, may), rel=1e-12, abs=1e-300)
        assert all(weight == 0 for weight, yes in zip(found, may, strict=True) if not yes)


def test_a_finite_fill_gives_an_empty_row_equal_weights_and_masked_keys_what_low_scores_lose(
    js: MiniRacer,
) -> None:
    empty = call(js, "attention.softmax", [3.0, 1.0], [False, False], -1e6)
    assert empty == [0.5, 0.5]
    assert call(js, "attention.softmax", [3.0, 1.0], [False, False], None) == [0, 0]
    assert call(js, "attention.softmax", [-2e6, 1.0], [True, False], -1e6) == [0, 1]
    assert call(js, "attention.softmax", [-2e6, 1.0], [True, False], None) == [1, 0]


def test_a_value_without_weight_reaches_no_output(js: MiniRacer) -> None:
    assert call(js, "attention.pooled", [0.25, 0.75, 0], [[1, 2], [3, 4], [1e308, 1e308]]) == [
        2.5,
        3.5,
    ]


def test_the_moment_of_tanh_equals_the_one_in_python(js: MiniRacer) -> None:
    tanh_moment = import_module("attnbench_plugins.scorings._tanh").tanh_moment
    for terms in [[(1, 1.0)], [(2, 0.5), (2, 0.5)], [(512, 0.5), (512, 0.5)]]:
        assert call(js, "attention.tanhMoment", terms) == pytest.approx(
            tanh_moment(*terms), rel=1e-12
        )


@pytest.mark.parametrize("name", SCORINGS)
def test_fresh_parameters_give_the_variance_that_the_function_declares(
    js: MiniRacer, name: str
) -> None:
    size = 16
    found = call(js, "attention.variance", name, size, 16, 600, 1)
    if "unit_variance" in attnbench.get(name).laws:
        # of 4800 scores; those of one module hang together, so the band is wider than theirs alone
        assert math.isclose(found, 1.0, rel_tol=0.25)
    elif name == "dot":
        assert math.isclose(found, size, rel_tol=0.25)
    else:
        assert found < 1.0
