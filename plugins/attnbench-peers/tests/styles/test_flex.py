from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters
from attnbench.checking.call_cost import calls_at
from attnbench.errors import StyleError
from attnbench.oracle.budget import Oracle
from attnbench.subject.lookup import resolve

CASE = attnbench.Case((2, 2), 3, 5, 8, 8, 8, mask="boolean")


def nearer(score: Tensor, batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Tensor:
    """A score loses half for each step."""
    return score - 0.5 * (q_idx - kv_idx).abs()


def earlier(batch: Any, head: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Up to the query's own place."""
    return q_idx >= kv_idx


def test_flex_attention_gives_what_the_same_bias_and_mask_give() -> None:
    (subject,) = resolve(adapters.flex(nearer, earlier))
    module, inputs = subject.build(CASE.replace(mask="floating"))
    place = torch.arange(5)
    distance = (torch.arange(3).unsqueeze(-1) - place).abs()
    assert inputs.attn_mask is not None
    bias = inputs.attn_mask - 0.5 * distance
    bias = bias.masked_fill(torch.arange(3).unsqueeze(-1) < place, float("-inf"))
    live = (bias > float("-inf")).any(-1, keepdim=True)
    expected = scaled_dot_product_attention(
        inputs.query, inputs.key, inputs.value, attn_mask=bias
    ).masked_fill(~live, 0.0)
    torch.testing.assert_close(subject.output(module, inputs), expected)


def test_a_change_of_scores_is_taken_to_know_positions_and_heads() -> None:
    assert resolve(adapters.flex())[0].conventions.positions == "none"
    conventions = resolve(adapters.flex(nearer))[0].conventions
    assert (conventions.positions, conventions.per_head) == ("absolute", True)


def test_the_style_tells_a_score_mod_from_a_mask_mod_by_its_arguments() -> None:
    assert resolve(nearer, "flex")[0].name == "nearer"
    assert "masked" not in resolve(earlier, "flex")[0].name
    with pytest.raises(StyleError, match="it takes 2 arguments, but a score_mod takes score"):
        resolve(lambda score, head: score, "flex")
    with pytest.raises(StyleError, match="it takes 4 arguments, but a score_mod"):
        resolve(lambda query, key, value, attn_mask=None: value, "flex")
    (known,) = resolve("torch.nn.attention.flex_attention:flex_attention")
    assert known.about[0].startswith("flex: called as flex")


def test_a_call_is_not_traced_by_the_compiler() -> None:
    (subject,) = resolve(adapters.flex(nearer))
    traced = 600_000  # functions entered, where the compiler traces each shape
    assert calls_at(subject, attnbench.Case((2,), 9, 9)) < traced / 10


def test_the_rounding_mode_of_the_budget_runs_a_higher_order_operator() -> None:
    (subject,) = resolve(adapters.flex())
    module, inputs = subject.build(CASE.replace(mask="none"))
    oracle = Oracle(subject, module, inputs)
    (first, *_) = oracle.sure_budgets()
    assert bool((first > 0).all())
    assert bool((first < 1e-4).all())
