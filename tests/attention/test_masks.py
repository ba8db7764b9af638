from typing import Any

import pytest
import torch

from attnbench.attention.masks import causal_mask, fold, window_mask
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


def test_window_holds_the_keys_around_the_bottom_right_diagonal() -> None:
    assert window_mask(2, 4, 1, 0).tolist() == [
        [False, True, True, False],
        [False, False, True, True],
    ]
    assert torch.equal(window_mask(3, 5, None, 0), causal_mask(3, 5))
    with pytest.raises(MaskError, match="at least 0"):
        window_mask(2, 2, -1, 0)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"valid_lens": torch.tensor([-1, 2])}, r"lengths lie in 0 \.\. 4"),
        ({"valid_lens": torch.tensor([2, 5])}, r"lengths lie in 0 \.\. 4"),
        ({"valid_lens": torch.tensor([1, 1, 1])}, r"should have \(2,\) or \(2, 3\)"),
        ({"valid_lens": torch.ones(2, 4).long()}, r"should have \(2,\) or \(2, 3\)"),
        ({"valid_lens": torch.ones(2, 3, 1).long()}, r"should have \(2,\) or \(2, 3\)"),
        ({"valid_lens": torch.ones(2)}, "should be an integer dtype"),
        ({"valid_lens": torch.tensor([1]), "lead": ()}, "the query has none"),
        ({"attn_mask": torch.ones(3, 4).long()}, r"attn_mask\.bool\(\)"),
        ({"attn_mask": torch.ones(3, 4, dtype=torch.uint8)}, r"attn_mask\.bool\(\)"),
        *(
            ({"attn_mask": torch.ones(shape).bool()}, r"broadcast to the scores' \(2, 3, 4\)")
            for shape in ((4,), (4, 3), (3, 3, 4), (2, 2, 3, 4))
        ),
        ({"attn_mask": torch.ones(3, 4, device="meta").bool()}, "attn_mask is on meta"),
    ],
)
def test_a_mask_that_does_not_fit_is_an_error(given: Any, told: str) -> None:
    with pytest.raises((MaskError, DeviceError), match=told):
        folded(**given)


def test_a_column_mask_of_one_entry_hides_every_key() -> None:
    mask = folded(torch.tensor([[True], [False], [True]]))
    assert mask.hidden_keys.shape[-2:] == (4, 1)
    assert mask.empty_rows.flatten().tolist() == [False, True, False]
