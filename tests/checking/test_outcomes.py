"""Outcomes as data: JSON that its schema describes, and that is read back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from importlib import resources

import jsonschema
import pytest
from torch import Tensor, nn

import attnbench
from attnbench.cases.case import Case
from attnbench.checking.check_report import SCHEMA, CheckReport, failure_text
from attnbench.checking.outcomes import Failure, Outcome, lead_of

SHIPPED = json.loads(
    resources.files("attnbench.checking").joinpath("outcomes.schema.json").read_text("utf-8")
)
FOUND = Failure(
    quantity="output",
    place=(0, 1),
    got=math.nan,
    expected=1.5,
    allowed=1e-6,
    multiple=math.inf,
    case=Case().id,
)
REPORT = CheckReport(
    (
        Outcome("mine", "copies_agree", "passed", "3 scheduled", 3, 0.5, seed=1),
        Outcome("mine", "layouts_agree", "failed", "output[0, 1] = nan", 3, 0.5, FOUND),
    ),
    "quick",
    1,
    ("a note",),
    ("mine: called as sdpa",),
)


def test_the_schema_describes_the_json_of_every_field() -> None:
    jsonschema.Draft202012Validator.check_schema(SHIPPED)
    jsonschema.validate(json.loads(REPORT.to_json()), SHIPPED)
    parts = SHIPPED["$defs"]
    assert set(parts["outcome"]["properties"]) == set(Outcome.__dataclass_fields__)
    assert set(parts["failure"]["properties"]) == set(Failure.__dataclass_fields__)
    assert SHIPPED["properties"]["schema"]["const"] == SCHEMA


@pytest.mark.parametrize("field", ["status", "cases", "failure"])
def test_the_schema_refuses_what_is_no_outcome(field: str) -> None:
    content = json.loads(REPORT.to_json())
    content["outcomes"][1][field] = "no"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(content, SHIPPED)


class Large(nn.Module):
    """A product that no law bounds."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return 100 * query @ key.mT


def test_a_check_gives_json_that_the_schema_describes() -> None:
    wrong = attnbench.ScoringSpec(
        name="wrong",
        make=lambda query_size, key_size: Large(),
        equal_sizes=True,
        laws=("bounded_by_one",),
    )
    report = attnbench.check(wrong, profile="quick", invariants=["bounded_by_one"])
    (outcome,) = report.of("failed")
    assert outcome.failure is not None
    assert outcome.failure.quantity.startswith("scores")
    assert isinstance(outcome.failure.got, float)
    jsonschema.validate(json.loads(report.to_json()), SHIPPED)


def test_nan_where_a_wide_dtype_has_it_does_not_lead_and_has_no_hint() -> None:
    both = replace(FOUND, expected=math.nan, hint="something")
    outcomes = [
        Outcome(
            "mine",
            "half_types_agree",
            "failed",
            "",
            failure=replace(FOUND, got=1.5, expected="nan"),
        ),
        Outcome("mine", "copies_agree", "failed", "", failure=both),
        Outcome("mine", "scale_multiplies_scores", "failed", "", failure=replace(FOUND, got=1.0)),
    ]
    assert lead_of(outcomes) is outcomes[2]
    assert "usually" not in failure_text(outcomes[1])


def test_of_what_raises_the_commonest_place_leads() -> None:
    places = {"inputs_are_unchanged": 3, "layouts_agree": 7, "pools_values": 7}
    outcomes = [
        Outcome(
            "mine", name, "failed", failure=replace(FOUND, raised="E", source_line=f"{n}", hint="a")
        )
        for name, n in places.items()
    ]
    assert lead_of(outcomes) is outcomes[1]
    assert "usually" not in failure_text(outcomes[1])
