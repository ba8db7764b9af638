"""Failures that depend on earlier calls are told apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from attnbench.checking.parallel import run_checks
from attnbench.checking.works import works_of
from attnbench.registry.address import parse_address

OPTIONS = {"profile": "quick", "device": "cpu", "dtypes": None}
SOURCE = """
import itertools
from torch.nn.functional import scaled_dot_product_attention as right

calls = itertools.count()


def tires(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    output = right(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
    return output * 1.5 if next(calls) > 60 else output


def wrong(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None):
    return 1.5 * right(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)
"""


@pytest.mark.parametrize(("name", "depends"), [("tires", True), ("wrong", False)])
def test_a_failure_that_does_not_come_alone_says_so(
    name: str, depends: bool, tmp_path: Path
) -> None:
    file = tmp_path / "own.py"
    file.write_text(SOURCE)
    works = works_of(
        [(parse_address(f"{file}:{name} as sdpa"), name)], ["agrees_with_scalar_reference"]
    )
    found = list(run_checks(works, OPTIONS, jobs=1, timeout_s=120, memory_gib=2))
    assert [outcome.status for outcome in found] == ["failed"] * (1 + depends)
    assert "fails only after earlier calls" not in found[0].reason  # which came at once
    assert ("fails only after earlier calls" in found[-1].reason) == depends
