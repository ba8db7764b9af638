"""Weights that the identity as value shows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attnbench import Case, MechanismSpec
from attnbench.subject.lookup import resolve


class Pooling(nn.Module):
    """Textbook attention that hands back no weights."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        valid_lens: Tensor | None = None,
    ) -> Tensor:
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
    make=lambda *sizes: Pooling(),
    equal_sizes=True,
    accepts=("valid_lens",),
    laws=("pools_values",),
)


@pytest.mark.parametrize("mask", ["none", "boolean", "floating", "padding"])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_the_identity_shows_the_weights_in_blocks_as_wide_as_the_value(
    lead: tuple[int, ...], mask: str
) -> None:
    (subject,) = resolve(SPEC)
    case = Case(lead, 4, 7, 3, 3, 2, dtype="float64", mask=mask).legal()
    module, inputs = subject.build(case)
    found = subject.weights(module, inputs)
    assert found is not None
    expected = weights(inputs.query, inputs.key, inputs.attn_mask, inputs.valid_lens)
    torch.testing.assert_close(found, expected)
