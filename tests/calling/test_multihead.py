import functools
from typing import Any

import pytest
import torch
from torch import nn

import attnbench
from attnbench import adapters
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve

FEW = [
    "agrees_with_float64",
    "asking_for_weights_changes_nothing",
    "empty_rows_give_zeros",
    "keeps_the_contract",
    "leading_sizes_fold",
    "mask_forms_agree",
    "masked_weights_are_zero",
    "masks_broadcast",
    "masking_equals_deleting",
    "weights_sum_to_one",
]


class OwnOrder(nn.MultiheadAttention):
    def __init__(self, num_heads: int, embed_dim: int) -> None:
        super().__init__(embed_dim, num_heads, batch_first=True, add_zero_attn=True)


class PreNorm(nn.MultiheadAttention):
    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__(embed_dim, num_heads, batch_first=True, bias=False)
        self.norm = nn.LayerNorm(embed_dim)

    def forward(  # type: ignore[override]
        self, query: Any, key: Any, value: Any, need_weights: bool = False, **kwargs: Any
    ) -> Any:
        return super().forward(
            self.norm(query), self.norm(key), value, need_weights=need_weights, **kwargs
        )


@pytest.mark.parametrize(
    "make",
    [
        nn.MultiheadAttention,
        OwnOrder,
        PreNorm,
        functools.partial(nn.MultiheadAttention, add_zero_attn=True, bias=False),
        functools.partial(nn.MultiheadAttention, add_bias_kv=True),
        nn.MultiheadAttention(8, 2, kdim=6),
    ],
    ids=["class", "subclass", "pre_norm", "zero_key", "learned_key", "module"],
)
def test_torchs_multihead_attention_is_not_accused(make: Any) -> None:
    report = attnbench.check(make, style="multihead", profile="quick", invariants=FEW)
    assert report.ok, str(report)
    assert len(report.of("passed")) >= len(FEW) - 1


def test_a_module_that_reads_its_mask_the_other_way_is_told() -> None:
    class Opposite(nn.MultiheadAttention):
        def forward(self, query: Any, key: Any, value: Any, *rest: Any, **given: Any) -> Any:
            given["attn_mask"] = None if given["attn_mask"] is None else ~given["attn_mask"]
            return super().forward(query, key, value, *rest, **given)

    names = ["masking_equals_deleting"]
    report = attnbench.check(Opposite, style="multihead", profile="quick", invariants=names)
    assert [outcome.status for outcome in report.outcomes] == ["failed"]


def test_a_modules_own_sizes_are_kept() -> None:
    (subject,) = resolve(nn.MultiheadAttention(12, 3, kdim=5))
    sizes = subject.legal(attnbench.Case(query_size=7, key_size=2, value_size=3)).sizes
    assert (sizes.query_size, sizes.key_size, sizes.value_size) == (12, 5, 12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (nn.Linear, "cannot be called as multihead: it has no argument embed_dim"),
        (nn.Linear(2, 2), "its forward has no attn_mask|has no embed_dim"),
    ],
)
def test_what_is_no_multihead_attention_is_an_error(make: Any, message: str) -> None:
    with pytest.raises(StyleError, match=message):
        adapters.multihead(make)


class OfOnesOwn(nn.Module):
    """Two heads without ``batch_first``, which hands back no weights whatever is asked."""

    batches_first = True

    def __init__(self, embed_dim: int, num_heads: int) -> None:
        super().__init__()
        self.heads, self.maps = (
            num_heads,
            nn.ModuleList(nn.Linear(embed_dim, embed_dim) for _ in range(4)),
        )

    def forward(
        self, query: Any, key: Any, value: Any, attn_mask: Any = None, need_weights: bool = False
    ) -> Any:
        given = [m(tensor) for m, tensor in zip(self.maps, (query, key, value), strict=False)]
        given = given if self.batches_first else [tensor.transpose(0, 1) for tensor in given]
        q, k, v = (tensor.unflatten(-1, (self.heads, -1)).transpose(1, 2) for tensor in given)
        scores = q * q.shape[-1] ** -0.5 @ k.mT
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask.reshape(-1, 1, *attn_mask.shape[-2:]), -torch.inf)
        output = self.maps[3]((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return output if self.batches_first else output.transpose(0, 1), None


class LengthsFirst(OfOnesOwn):
    batches_first = False


@pytest.mark.parametrize("make", [OfOnesOwn, LengthsFirst])
def test_a_call_tells_the_order_of_axes_and_whether_weights_come(make: Any) -> None:
    spec = adapters.multihead(make, conventions={"masks": ("boolean",)})
    assert spec.accepts == ()
    names = ["keeps_the_contract", "item_alone_equals_item_in_batch", "finite_at_extremes"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert report.ok, str(report)


def test_a_module_that_raises_for_floating_masks_gets_boolean_ones() -> None:
    for make in (OfOnesOwn, LengthsFirst):
        assert adapters.multihead(make).conventions["masks"] == ("boolean", "lengths")
    assert "masks" not in adapters.multihead(nn.MultiheadAttention).conventions
