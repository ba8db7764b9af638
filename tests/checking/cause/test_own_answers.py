"""Mistakes that a subject's own answers show."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnbench.adapters import textbook
from attnbench.checking.cause.own_answers import MIXED, own_mistake
from attnbench.subject.lookup import resolve


class Heads(nn.Module):
    """Two heads of a multi-head attention, split and merged by a view alone where asked."""

    def __init__(self, size: int, split: bool, merge: bool) -> None:
        super().__init__()
        self.out, self.split, self.merge = nn.Linear(size, size), split, merge

    def heads(self, tensor: Tensor) -> Tensor:
        if self.split:
            return tensor.unflatten(-1, (2, -1)).transpose(1, 2)
        return tensor.reshape(tensor.shape[0], 2, -1, tensor.shape[-1] // 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        scores = self.heads(query) @ self.heads(key).mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -torch.inf)
        output = scores.softmax(-1) @ self.heads(value)
        if self.split and self.merge:
            output = output.transpose(1, 2)
        return self.out(output.reshape(query.shape))


@pytest.mark.parametrize(
    ("split", "merge", "mistake"),
    [
        (True, True, None),
        (True, False, "queries_read_together"),
        (False, False, "key_not_read_by_all"),
    ],
)
def test_rows_that_are_mixed_without_a_mask_come_before_masks(
    split: bool, merge: bool, mistake: str | None
) -> None:
    class Made(Heads):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__(2 * -(-num_hiddens // 2), split, merge)

    spec = textbook(Made, sizes=lambda sizes: sizes.replace(query_size=8, key_size=8, value_size=8))
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


def test_a_subject_that_draws_random_numbers_mixes_no_rows() -> None:
    class Random(Heads):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__(2 * -(-num_hiddens // 2), split=True, merge=True)

        def forward(self, *given: Any) -> Any:
            output = super().forward(*given)
            return output + torch.rand(output.shape)

    spec = textbook(Random, sizes=lambda s: s.replace(query_size=8, key_size=8, value_size=8))
    (subject,) = resolve(spec)
    assert own_mistake(subject) not in MIXED
