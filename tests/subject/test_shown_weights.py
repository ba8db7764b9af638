"""Weights that the identity shows: what they are, and in how many calls."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench import Case, MechanismSpec
from attnbench.subject import shown_weights
from attnbench.subject.lookup import resolve


class Pooling(nn.Module):
    """Textbook attention that hands back no weights, and counts its calls."""

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__()
        self.calls = 0

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        valid_lens: Tensor | None = None,
    ) -> Tensor:
        self.calls += 1
        return weights(query, key, attn_mask, valid_lens) @ value


def weights(query: Tensor, key: Tensor, mask: Tensor | None, lens: Tensor | None) -> Tensor:
    scores = query @ key.mT
    if lens is not None:
        lens = lens.reshape(*lens.shape, *[1] * (scores.dim() - lens.dim()))
        scores = scores.masked_fill(torch.arange(key.shape[-2]) >= lens, -torch.inf)
    if mask is not None:
        hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
        scores = (scores if mask.dtype == torch.bool else scores + mask).masked_fill(
            hidden, -torch.inf
        )
    return scores.softmax(-1).nan_to_num(0.0)


SPEC = MechanismSpec(
    name="pooling",
    make=Pooling,
    equal_sizes=True,
    accepts=("valid_lens",),
    laws=("pools_values",),
)


def shown(case: Case, spec: MechanismSpec = SPEC) -> tuple[int, Tensor, Tensor]:
    """The number of calls, the weights that are shown, and those that there are."""
    (subject,) = resolve(spec)
    module: Any
    module, inputs = subject.build(case)
    module.calls = 0
    found = subject.weights(module, inputs)
    assert found is not None
    expected = weights(inputs.query, inputs.key, inputs.attn_mask, inputs.valid_lens)
    return module.calls, found, expected


CASE = Case((2, 3), 4, 7, 3, 3, 2, dtype="float64")


@pytest.mark.parametrize(
    "mask", ["none", "boolean", "boolean_shared", "key_row", "key_padding", "floating", "padding"]
)
@pytest.mark.parametrize("lead", [(3,), (1,), (2, 3), (3, 1, 2)])
def test_weights_of_all_blocks_are_read_in_one_call(lead: tuple[int, ...], mask: str) -> None:
    calls, found, expected = shown(CASE.replace(lead=lead, mask=mask))
    torch.testing.assert_close(found, expected)
    assert calls == 1


def test_what_knows_its_leading_sizes_is_called_for_each_block() -> None:
    by_head = replace(SPEC, name="by_head", conventions={"per_head": True})
    for case, spec in ((CASE, by_head), (CASE.replace(lead=()), SPEC)):
        calls, found, expected = shown(case, spec)
        torch.testing.assert_close(found, expected)
        assert calls == 4


def test_many_weights_are_read_in_several_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_weights, "_LARGEST", 3 * 6 * 4 * 7)
    calls, found, expected = shown(CASE)
    torch.testing.assert_close(found, expected)
    assert calls == 2
