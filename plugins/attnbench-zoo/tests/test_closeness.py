"""What the measurement of ``assert_attention_close`` counts."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from attnbench_zoo import entries
from attnbench_zoo.closeness import DTYPES, PLAIN, RIGHT, kills, main, right_call, times

NAMED = {entry.name: entry for entry in entries() if not entry.right}
CASES = [PLAIN.replace(dtype=dtype) for dtype in DTYPES]


def test_each_rule_finds_a_gross_mistake_in_each_dtype() -> None:
    found = kills(NAMED["scale_missing"], CASES)
    assert list(found) == list(DTYPES)
    assert all(one["attention_close"] < 1 and one["assert_close"] < 1 for one in found.values())


def test_a_small_mistake_is_found_by_the_tighter_rule_only() -> None:
    found = kills(NAMED["float32_for_float64"], CASES[:1])["float64"]
    assert found["attention_close"] <= 1e-3 * found["assert_close"]


def test_what_no_output_shows_does_not_count() -> None:
    assert kills(NAMED["weights_detached"], CASES) == {}


def test_a_rule_that_accuses_a_right_implementation_is_not_fair() -> None:
    found = kills(NAMED["scale_missing"], CASES[3:])["bfloat16"]
    assert found["fair"] == math.inf


@pytest.mark.parametrize("name", RIGHT)
def test_right_calls_agree(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 3, 40, 8, generator=generator, dtype=torch.float64) for _ in range(3)]
    for mask in (None, torch.ones(40, 40, dtype=torch.bool).tril(), torch.zeros(40, 40).double()):
        right = torch.nn.functional.scaled_dot_product_attention(*tensors, mask)
        assert torch.allclose(RIGHT[name](*tensors, mask), right, rtol=1e-12, atol=1e-12)


def test_calls_are_drawn_from_their_seed() -> None:
    first, second = right_call(7), right_call(7)
    assert first[:2] == second[:2]
    assert all(map(torch.equal, first[2], second[2]))


def test_the_count_of_failures_goes_on_where_the_file_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "closeness.jsonl"
    main(["right", "--seeds", "3", "--file", str(file)])
    main(["right", "--seeds", "5", "--file", str(file)])
    lines = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    assert [(one["from"], one["until"], one["failed"]) for one in lines] == [(0, 3, []), (3, 5, [])]
    assert capsys.readouterr().out.endswith("5 right results, 0 failed\n")


def test_times_are_of_both_sides() -> None:
    ours, theirs = times(torch.float32, 16, 3)
    assert ours > 0
    assert theirs > 0
