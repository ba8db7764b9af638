from __future__ import annotations

import pytest
from attnbench_zoo.right.attention import Attention
from attnbench_zoo.right.heads import HEADS
from torch import Tensor

from attnbench.invariants import shapes, symmetry
from tests.invariant_runs import by_name, mutant, run

INVARIANTS = by_name(symmetry, shapes)


@pytest.mark.parametrize("name", sorted(set(INVARIANTS) - {"grouped_heads_equal_expanded_heads"}))
def test_multi_head_attention_with_projections_passes(name: str) -> None:
    outcome = run(HEADS.spec, name)
    assert outcome.status == "passed", outcome.reason


def test_a_subject_without_enable_gqa_is_not_asked_for_grouped_heads() -> None:
    outcome = run(HEADS.spec, "grouped_heads_equal_expanded_heads")
    assert (outcome.status, outcome.reason) == ("skipped", "does not accept enable_gqa")


class SoftmaxOverQueries(Attention):
    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return hidden.softmax(-2).masked_fill(~allowed, 0.0)


def test_softmax_over_the_queries_is_seen_by_a_query_alone() -> None:
    outcome = run(mutant(SoftmaxOverQueries), "query_alone_equals_query_among_others", shrink=True)
    assert outcome.status == "failed"
    assert "for query" in outcome.reason
    assert "but the same query among all 2 has" in outcome.reason
