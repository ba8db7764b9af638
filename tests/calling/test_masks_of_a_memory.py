"""Masks over a memory: what needs one, what may have one, and what only looks like one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.examples import example_spec
from torch import nn

from attnbench.errors import StyleError
from tests.calling.sources import found

CROSSED = """
class Crossed(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
    def scores(self, q, h):
        return self.q(q) @ self.k(h).mT / q.shape[-1] ** 0.5
    def forward(self, q, h, mask=None):
        scores = self.scores(q, h)
        if mask is not None:
            scores[mask.view(scores.shape)] = float("-inf")
        return scores.softmax(-1) @ self.v(h)

class Needing(Crossed):
    def forward(self, q, h, mask):
        scores = self.scores(q[:, None], h)[:, 0].masked_fill(mask, float("-inf"))
        return (scores.softmax(-1).masked_fill(mask, 0)[:, None] @ self.v(h))[:, 0]

class Mean(Crossed):
    def forward(self, q, h, mask):
        scores = self.scores(q[:, None], h)[:, 0].masked_fill(mask, -1e4)
        return (scores.softmax(-1)[:, None] @ self.v(h))[:, 0]

class Covered(Crossed):
    def __init__(self, dim, coverage_attn):
        super().__init__(dim)
        self.coverage_attn = coverage_attn
    def forward(self, q, h, coverage=None):
        scores = self.scores(q[:, None], h)[:, 0]
        if self.coverage_attn:
            scores = scores + coverage.view(scores.shape)
        return (scores.softmax(-1)[:, None] @ self.v(h))[:, 0]

class Wrapped(nn.Module):
    def __init__(self, attention, d_model):
        super().__init__()
        self.inner = attention
    def forward(self, queries, keys, values):
        return self.inner(queries, keys, values)
"""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Crossed", "q (B, L, E), h (B, S, E); no weights are found; mask (B, L, S), True hides"),
        ("Needing", "q (B, E), h (B, S, E); no weights are found; mask (B, S), True hides"),
        ("Covered", "q (B, E), h (B, S, E); no weights are found; always coverage=0.25 (B, S)"),
    ],
)
def test_the_mask_of_a_memory_is_found(tmp_path: Path, name: str, said: str) -> None:
    target: Any = found(tmp_path, CROSSED, name)
    assert spec_of(target).notes[0] == f"called with {said}"
    if name == "Needing":
        batch = torch.randn(3, 12), torch.randn(3, 7, 12), torch.arange(7).expand(3, 7) >= 5
        assert example_spec(target(12).eval(), batch).notes[0] == f"called with {said}"


def test_a_number_in_place_of_minus_infinity_is_found_where_keys_are_values(tmp_path: Path) -> None:
    spec: Any = spec_of(found(tmp_path, CROSSED, "Mean"))
    assert -1e6 < spec.conventions["mask_value"] < -1e4
    assert any("is not looked at: its values are its keys" in note for note in spec.notes)


def test_what_was_made_wrongly_is_said_before_any_call(tmp_path: Path) -> None:
    with pytest.raises(StyleError) as raised:
        spec_of(found(tmp_path, CROSSED, "Wrapped"))
    first, second = str(raised.value).splitlines()
    assert "'int' object is not callable" in first
    assert second.startswith("It was made by Wrapped(attention=E, d_model=E)")


class Held(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.mask = nn.Linear(8, 8), torch.arange(7) >= torch.tensor([[7], [5], [6]])

    def forward(self, query: Any, context: Any) -> Any:
        scores = (context @ self.q(query)[..., None])[..., 0].masked_fill(self.mask, -torch.inf)
        return (scores.softmax(-1)[:, None] @ context)[:, 0]


def test_why_an_example_is_not_read_as_what_it_is_is_said() -> None:
    with pytest.raises(StyleError, match="calls of other sizes than those that were tried raise"):
        example_spec(Held(), (torch.randn(3, 8), torch.randn(3, 7, 8)))


def attend(queries: Any, keys: Any, attn_mask: Any, positions: Any) -> Any:
    scores = (queries @ (keys + positions).mT).masked_fill(attn_mask, -torch.inf)
    return scores.softmax(-1) @ (keys + positions)


def test_queries_over_held_keys_need_not_count_and_a_function_need_not_be_copied() -> None:
    x, mask = torch.randn(3, 9, 16), torch.ones(9, 9, dtype=torch.bool).triu(1)
    batch = nn.functional.layer_norm(x, (16,)), x, mask, torch.randn(3, 9, 16)
    exempt: Any = example_spec(attend, batch).exempt
    assert {*exempt} == {"outputs_depend_on_their_token", "copies_agree"}
