"""``attnbench calibrate``: pairs of the same code."""

from __future__ import annotations

import pytest

from tests.cli_runs import run


def test_the_same_code_on_both_sides_tells_the_spread_of_a_pair() -> None:
    found = run("calibrate", "--pairs", "3", "--workload", "gpt2_decode", "--json")
    assert found.code == 0, found.err
    (row,) = found.json["rows"]
    assert (row["subject"], row["case"], row["pairs"]) == ("scaled_dot", "gpt2_decode", 3)
    assert row["spread_%"] > 0
    assert row["seen_15_%"] > row["seen_30_%"] > row["seen_60_%"] > 0
    assert abs(row["mean_%"]) < 50
    assert found.json["row_s"] > 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--set", "compar"), "Did you mean 'compare'"),
        (("gone.py:SPEC",), "there is no file 'gone.py'"),
    ],
)
def test_bad_input_is_one_clear_error(arguments: tuple[str, ...], complaint: str) -> None:
    found = run("calibrate", *arguments)
    assert found.code == 2
    assert complaint in found.err
    assert "Traceback" not in found.err
