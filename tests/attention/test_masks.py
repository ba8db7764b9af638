from typing import Any

import pytest
import torch

from attnbench.attention.masks import causal_mask, fold, valid_lens_mask, window_mask
from attnbench.errors import DeviceError, MaskError


def folded(
    attn_mask: Any = None,
    valid_lens: Any = None,
    is_causal: Any = False,
    *,
    lead: Any = (2,),
    q_len: Any = 3,
    kv_len: Any = 4,
) -> Any:
    return fold(
        attn_mask,
        valid_lens,
        is_causal,
        lead=lead,
        q_len=q_len,
        kv_len=kv_len,
        device=torch.device("cpu"),
    )


def test_causal_mask_is_aligned_to_the_bottom_right() -> None:
    assert causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert causal_mask(3, 1).tolist() == [[False], [False], [True]]


def test_window_holds_the_keys_around_the_bottom_right_diagonal() -> None:
    assert window_mask(2, 4, 1, 0).tolist() == [
        [False, True, True, False],
        [False, False, True, True],
    ]
    assert torch.equal(window_mask(3, 5, None, 0), causal_mask(3, 5))


@pytest.mark.parametrize(("before", "after"), [(-1, 0), (0, -2)])
def test_negative_window_is_an_error(before: Any, after: Any) -> None:
    with pytest.raises(MaskError, match="at least 0"):
        window_mask(2, 2, before, after)


def test_one_length_an_item_hides_the_last_keys_of_every_query() -> None:
    mask = valid_lens_mask(torch.tensor([2, 3]), (2,), 2, 4)
    assert mask.expand(2, 2, 4).tolist() == [
        [[True, True, False, False]] * 2,
        [[True, True, True, False]] * 2,
    ]


def test_one_length_a_query_broadcasts_over_heads() -> None:
    mask = valid_lens_mask(torch.tensor([[0, 1], [2, 1]]), (2, 5), 2, 2).expand(2, 5, 2, 2)
    assert mask[0, 3].tolist() == [[False, False], [True, False]]
    assert mask[1, 0].tolist() == [[True, True], [True, False]]


@pytest.mark.parametrize("lens", [[-1, 2], [2, 5]])
def test_length_out_of_range_is_an_error_that_says_the_range(lens: Any) -> None:
    with pytest.raises(MaskError, match=r"lengths lie in 0 \.\. 4"):
        valid_lens_mask(torch.tensor(lens), (2,), 3, 4)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (2, 3, 1)])
def test_lengths_of_another_shape_are_an_error(shape: Any) -> None:
    with pytest.raises(MaskError, match=r"should have \(2,\) or \(2, 3\)"):
        valid_lens_mask(torch.ones(shape, dtype=torch.long), (2,), 3, 4)


def test_floating_lengths_are_an_error() -> None:
    with pytest.raises(MaskError, match="should be an integer dtype"):
        folded(valid_lens=torch.ones(2))


def test_lengths_without_a_batch_are_an_error() -> None:
    with pytest.raises(MaskError, match="the query has none"):
        folded(valid_lens=torch.tensor([1]), lead=())


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integer_mask_is_an_error_that_says_what_to_write(dtype: Any) -> None:
    with pytest.raises(MaskError, match=r"attn_mask\.bool\(\)"):
        folded(torch.ones(3, 4, dtype=dtype))


@pytest.mark.parametrize("shape", [(4,), (4, 3), (3, 3, 4), (2, 2, 3, 4)])
def test_mask_that_does_not_broadcast_is_an_error(shape: Any) -> None:
    with pytest.raises(MaskError, match=r"broadcast to the scores' \(2, 3, 4\)"):
        folded(torch.ones(shape, dtype=torch.bool))


def test_mask_on_another_device_is_an_error() -> None:
    with pytest.raises(DeviceError, match="attn_mask is on meta"):
        folded(torch.ones(3, 4, dtype=torch.bool, device="meta"))


def test_infinite_entries_of_a_floating_mask_hide_and_the_rest_is_bias() -> None:
    mask = folded(torch.tensor([[0.5, float("-inf"), 0.0, -1e9]]))
    assert mask.allowed is not None
    assert mask.bias is not None
    assert mask.allowed.tolist() == [[True, False, True, True]]
    assert torch.isfinite(mask.bias).all()


def test_all_kinds_of_mask_combine() -> None:
    mask = folded(
        torch.tensor([[True, True, True, False]]),
        torch.tensor([3, 1]),
        is_causal=True,
    ).allowed
    assert mask is not None
    assert mask.expand(2, 3, 4)[0].int().tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0]]
    assert mask.expand(2, 3, 4)[1].int().tolist() == [[1, 0, 0, 0]] * 3


def test_opened_mask_has_a_key_for_every_row_and_keeps_the_others() -> None:
    mask = folded(torch.tensor([[False] * 4, [True, False, False, False], [True] * 4]))
    assert mask.opened().allowed.int().tolist() == [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    assert mask.empty_rows.flatten().tolist() == [True, False, False]


def test_a_column_mask_of_one_entry_hides_every_key() -> None:
    mask = folded(torch.tensor([[True], [False], [True]]))
    assert mask.hidden_keys.shape[-2:] == (4, 1)
    assert mask.empty_rows.flatten().tolist() == [False, True, False]
