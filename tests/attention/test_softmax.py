import math

import pytest
import torch

from attnbench.attention.softmax import masked_softmax, pool

SCORES = torch.tensor(
    [[[1.0, 2, 3, 4], [2, 1, 0, -1]], [[0.0, 1, 2, 3], [3, 2, 1, 0]]], dtype=torch.float64
)
LENS = torch.tensor([2, 3])


def test_worked_example_masks_the_last_two_keys_of_the_first_item_and_one_of_the_second() -> None:
    weights = masked_softmax(SCORES, valid_lens=LENS)
    e = torch.tensor(1.0, dtype=torch.float64).exp()
    first = [[1 / (1 + e), e / (1 + e), 0, 0], [e / (1 + e), 1 / (1 + e), 0, 0]]
    total = 1 + e + e * e
    second = [[1 / total, e / total, e * e / total, 0], [e * e / total, e / total, 1 / total, 0]]
    assert torch.allclose(weights, torch.tensor([first, second], dtype=torch.float64), atol=1e-15)


def test_the_callers_scores_are_not_edited() -> None:
    before = SCORES.clone()
    masked_softmax(SCORES, valid_lens=LENS)
    assert torch.equal(SCORES, before)


def test_scores_below_the_usual_fill_value_keep_their_weight() -> None:
    scores = torch.full((1, 3), -1e7, dtype=torch.float64)
    weights = masked_softmax(scores, torch.tensor([[True, True, False]]))
    assert weights.tolist() == [[0.5, 0.5, 0.0]]


def test_boolean_floating_and_length_masks_agree() -> None:
    mask = torch.arange(4) < LENS[:, None, None]
    floating = torch.zeros(2, 1, 4, dtype=torch.float64).masked_fill(~mask, float("-inf"))
    by_length = masked_softmax(SCORES, valid_lens=LENS)
    assert torch.equal(by_length, masked_softmax(SCORES, mask))
    assert torch.equal(by_length, masked_softmax(SCORES, floating))


def test_dropped_weights_are_rescaled() -> None:
    torch.manual_seed(0)
    weights, value = torch.full((1, 1000), 1e-3), torch.ones(1000, 1)
    kept = pool(weights.expand(2000, 1000), value, dropout_p=0.5)
    assert float(kept.mean()) == pytest.approx(1.0, abs=5e-3)
    assert set((pool(weights, torch.eye(1000), dropout_p=0.5) * 1000).round().tolist()[0]) == {0, 2}


@pytest.mark.parametrize("transformed", [False, True])
def test_a_row_whose_scores_hide_every_key_is_an_empty_row(transformed: bool) -> None:
    scores = torch.tensor([[0.0, -math.inf], [-math.inf, -math.inf]], requires_grad=True)
    call = torch.func.vmap(masked_softmax) if transformed else masked_softmax
    weights = call(scores[None])[0]
    assert weights.tolist() == [[1.0, 0.0], [0.0, 0.0]]
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.eq(0).all()
