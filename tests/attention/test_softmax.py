import math

import pytest
import torch
from torch import Tensor

from attnbench.attention.masks import fold
from attnbench.attention.softmax import pool, softmax_weights


def weights_of(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    q_len, kv_len = scores.shape[-2:]
    folded = fold(
        mask, lead=tuple(scores.shape[:-2]), q_len=q_len, kv_len=kv_len, device=scores.device
    )
    return softmax_weights(scores, folded)


def test_scores_below_the_usual_fill_value_keep_their_weight() -> None:
    scores = torch.full((1, 3), -1e7, dtype=torch.float64)
    weights = weights_of(scores, torch.tensor([[True, True, False]]))
    assert weights.tolist() == [[0.5, 0.5, 0.0]]
    assert scores.eq(-1e7).all()  # the caller's are not edited


def test_dropped_weights_are_rescaled() -> None:
    torch.manual_seed(0)
    weights, value = torch.full((1, 1000), 1e-3), torch.ones(1000, 1)
    kept = pool(weights.expand(2000, 1000), value, dropout_p=0.5)
    assert float(kept.mean()) == pytest.approx(1.0, abs=5e-3)
    assert set((pool(weights, torch.eye(1000), dropout_p=0.5) * 1000).round().tolist()[0]) == {0, 2}


@pytest.mark.parametrize("transformed", [False, True])
def test_a_row_whose_scores_hide_every_key_is_an_empty_row(transformed: bool) -> None:
    scores = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]], requires_grad=True)
    call = torch.func.vmap(weights_of) if transformed else weights_of
    weights = call(scores[None])[0]
    assert weights.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.eq(0).all()
