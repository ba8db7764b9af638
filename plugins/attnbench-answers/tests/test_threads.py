"""Kinds of threads from trackers, rebuilt: half of them are bugs, half are rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnbench_answers.comparisons import NOT_COMPARED, difference
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec, MechanismSpec
from attnbench.errors import UsageError

pytestmark = pytest.mark.slow
Attend = Callable[..., Tensor]


class Attention(nn.Module):
    def __init__(self, attend: Attend) -> None:
        super().__init__()
        self.attend = attend

    def forward(self, query: Tensor, key: Tensor, value: Tensor, **given: Any) -> Tensor:
        return self.attend(query, key, value, **given)


def spec(attend: Attend, *accepts: str) -> MechanismSpec:
    return MechanismSpec(
        name=attend.__name__,
        make=lambda *_: Attention(attend),
        equal_sizes=True,
        accepts=accepts,
    )


def hide(scores: Tensor, mask: Tensor | None, low: float = -math.inf) -> Tensor:
    if mask is None:
        return scores
    return scores.masked_fill(~mask, low) if mask.dtype == torch.bool else scores + mask


def pool(scores: Tensor, value: Tensor) -> Tensor:
    return scores.softmax(-1).nan_to_num(0.0) @ value


def eager(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    return pool(hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask), value)


def other_scale(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    return pool(hide(query @ key.mT / query.shape[-1], attn_mask), value)


def finite_mask(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask, -1e9)
    return scores.softmax(-1) @ value


def softmax_in_half(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask)
    narrow = torch.bfloat16 if scores.dtype == torch.float32 else None
    return scores.softmax(-1, dtype=narrow).nan_to_num(0.0).to(value.dtype) @ value


def angles_in_half(*given: Any, **more: Any) -> Tensor:
    """As ``rotary_in_half``, but the output is a small part of a sum, as in a residual layer."""
    return given[0] + 2**-6 * rotary_in_half(*given, **more)


def angles_in_float32(*given: Any, **more: Any) -> Tensor:
    return given[0] + 2**-6 * rotary(*given, **more)


def shorter_mantissa(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """Products of 10 bits, as tensor cores have them."""
    if query.dtype == torch.float32:
        query, key = ((t.contiguous().view(torch.int32) & ~0x1FFF) for t in (query, key))
        query, key = query.view(torch.float32), key.view(torch.float32)
    return eager(query, key, value, attn_mask)


def scaled_first(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    return pool(hide(query * query.shape[-1] ** -0.5 @ key.mT, attn_mask), value)


def summed_by_hand(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = (query.unsqueeze(-2) * key.unsqueeze(-3)).sum(-1) / math.sqrt(query.shape[-1])
    weights = hide(scores, attn_mask).softmax(-1).nan_to_num(0.0)
    return torch.einsum("...ls,...se->...le", weights, value)


def in_wider_type(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    wide = torch.promote_types(query.dtype, torch.float32)
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.to(wide)
    return eager(query.to(wide), key.to(wide), value.to(wide), mask).to(query.dtype)


def of_bfloat16(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    """A kernel that knows no other type, whatever it is given."""
    mask = attn_mask if attn_mask is None or attn_mask.dtype == torch.bool else attn_mask.bfloat16()
    return eager(query.bfloat16(), key.bfloat16(), value.bfloat16(), mask).to(query.dtype)


def rotary(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *, wide: bool = True
) -> Tensor:
    def turned(tensor: Tensor) -> Tensor:
        count, size = tensor.shape[-2:]
        dtype = torch.float32 if wide and tensor.dtype.itemsize < 4 else tensor.dtype
        rates = 100.0 ** -(torch.arange(0, size, 2, dtype=dtype) / size)
        angles = (torch.arange(count, dtype=dtype)[:, None] * rates).repeat(1, 2)
        left, right = tensor.chunk(2, -1)
        other = torch.cat([-right, left], -1)
        return tensor * angles.cos().to(tensor.dtype) + other * angles.sin().to(tensor.dtype)

    return eager(turned(query), turned(key), value, attn_mask)


def rotary_in_half(*given: Any, **more: Any) -> Tensor:
    """Cosines of angles that bfloat16 holds: at position 100 they are off by 0.2."""
    return rotary(*given, **more, wide=False)


def split_keys(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask)
    peak = scores.amax(-1, keepdim=True).clamp_min(-1e4)
    powers = (scores - peak).exp()
    parts = zip(powers.chunk(4, -1), value.chunk(4, -2), strict=True)
    sums = torch.stack([part @ values for part, values in parts]).sum(0)
    return (
        sums / torch.stack([p.sum(-1) for p in powers.chunk(4, -1)]).sum(0)[..., None]
    ).nan_to_num(0.0)


def aligned(corner: str) -> Attend:
    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        q_len, kv_len = query.shape[-2], key.shape[-2]
        scores = hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask)
        if is_causal:
            seen = kv_len - q_len if corner == "bottom_right" else 0
            scores = hide(scores, torch.ones(q_len, kv_len, dtype=torch.bool).tril(seen))
        return pool(scores, value)

    attend.__name__ = corner
    return attend


def grouped(repeat: Callable[[Tensor, int], Tensor], name: str) -> Attend:
    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, enable_gqa: bool = False
    ) -> Tensor:
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = repeat(key, groups), repeat(value, groups)
        return eager(query, key, value, attn_mask)

    attend.__name__ = name
    return attend


NEIGHBOURS = grouped(lambda t, n: t.repeat_interleave(n, -3), "neighbours")
STRIDE = grouped(lambda t, n: torch.cat([t] * n, -3), "stride")


class Decoder(nn.Module):
    """A block with rotary positions and a cache, and places for mistakes."""

    def __init__(
        self, size: int, *, eps: float, start: int, added: bool, half: bool, window: int
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(size, eps)
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.start, self.added, self.coarse, self.window = start, added, half, window

    def forward(self, hidden: Tensor, padding_mask: Any = None, cache: Any = None) -> Tensor:
        past = cache["seen"] if cache else 0
        length = past + hidden.shape[1]
        real = hidden.new_ones(len(hidden), length).bool() if padding_mask is None else padding_mask
        places = (real.cumsum(-1) - 1)[:, past:] + (self.start if past else 0)
        if self.added:  # besides, and padding counts
            hidden = hidden + torch.arange(past, length, dtype=hidden.dtype).sin()[:, None]
        query, key, value = self.qkv(self.norm(hidden)).chunk(3, -1)
        query, key = self.rotate(query, places), self.rotate(key, places)
        if cache is not None:
            key = cache["key"] = torch.cat([cache["key"], key], 1)
            value = cache["value"] = torch.cat([cache["value"], value], 1)
            cache["seen"] = length
        allowed = torch.ones(hidden.shape[1], length, dtype=torch.bool).tril(past) & real[:, None]
        allowed = allowed.triu(past + 1 - self.window)
        return hidden + self.out(eager(query, key, value, allowed))

    def rotate(self, tensor: Tensor, places: Tensor) -> Tensor:
        count = tensor.shape[-1] // 2
        wide = torch.promote_types(tensor.dtype, torch.float32)
        rates = 100.0 ** -(torch.arange(count, dtype=wide) / count)
        angles = places[..., None] * rates
        if self.coarse and tensor.dtype == torch.float32:
            angles = angles.bfloat16().float()
        left, right = tensor.chunk(2, -1)
        cos, sin = angles.cos().to(tensor.dtype), angles.sin().to(tensor.dtype)
        return torch.cat([left * cos - right * sin, left * sin + right * cos], -1)


def new(module: Any, batch_size: int) -> dict[str, Any]:
    size = module.out.in_features
    empty = module.out.weight.new_zeros(batch_size, 0, size)
    return {"seen": 0, "key": empty, "value": empty}


def decoder(**wrong: Any) -> LayerSpec:
    right: dict[str, Any] = {"eps": 1e-5, "start": 0, "added": False, "half": False, "window": 64}
    return LayerSpec(
        name="_".join(["decoder", *wrong]),
        make=lambda size: Decoder(size, **{**right, **wrong}),
        causal=True,
        accepts=("padding_mask", "cache"),
        cache=CacheSpec(new=new),
        laws=("left_padding_is_inert",),
        sizes=lambda size: size + size % 2,
    )


CACHE = {"question": "paths", "values": ("prefill", "decode")}

BUGS: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "other scale": ([spec(eager), spec(other_scale)], {}),
    "other scale in half": ([spec(eager), spec(other_scale)], {"dtype": "float16"}),
    "softmax in bfloat16": ([spec(eager), spec(softmax_in_half)], {}),
    "products of 10 bits": ([spec(eager), spec(shorter_mantissa)], {}),
    "positions in half": ([spec(rotary), spec(rotary_in_half)], {"dtype": "bfloat16"}),
    "positions in half within a sum": (
        [spec(angles_in_float32), spec(angles_in_half)],
        {"dtype": "bfloat16"},
    ),
    "positions in a cache in half": ([decoder(start=1)], {**CACHE, "dtype": "bfloat16"}),
    "a window of 32": ([decoder(window=32), decoder(window=33)], {}),
    "causal corner": (
        [spec(aligned(corner), "is_causal") for corner in ("top_left", "bottom_right")],
        {},
    ),
    "order of grouped heads": (
        [spec(NEIGHBOURS, "enable_gqa"), spec(STRIDE, "enable_gqa")],
        {},
    ),
    "positions in a cache": ([decoder(start=1)], CACHE),
    "left padding counted": ([decoder(added=True)], {"question": "batch"}),
    "epsilon of a norm": ([decoder(), decoder(eps=1e-4)], {}),
    "rotation in half": ([decoder(), decoder(half=True)], {}),
}

ROUNDING: dict[str, tuple[list[Any], dict[str, Any]]] = {
    **{
        f"{other.__name__} in {dtype}": ([spec(eager), spec(other)], {"dtype": dtype})
        for other in (scaled_first, summed_by_hand, in_wider_type, split_keys)
        for dtype in ("float32", "bfloat16", "float16")
    },
    "blocks in float64": (["scaled_dot", "scaled_dot/fused"], {"dtype": "float64"}),
    "angles in float32": ([spec(rotary), spec(rotary)], {"dtype": "bfloat16"}),
    "kernels of half types alone": ([spec(eager), spec(of_bfloat16)], {"dtype": "bfloat16"}),
    "grouped heads": ([spec(NEIGHBOURS, "enable_gqa")] * 2, {}),
    "cache": ([decoder()], CACHE),
    "cache in half": ([decoder()], {**CACHE, "dtype": "bfloat16"}),
    "chunks": ([decoder()], {"question": "paths", "values": ("cached", "chunks")}),
    "batch": ([decoder()], {"question": "batch"}),
    "narrow": ([decoder()], {"question": "dtype", "values": ("float32", "bfloat16")}),
}


@pytest.mark.parametrize("name", BUGS)
def test_a_bug_is_told(name: str) -> None:
    targets, asked = BUGS[name]
    rows = difference(targets, **asked)
    assert "bug" in {row["verdict"] for row in rows}
    assert all(
        row["operations"] or row["parted_in"] or "off by" in row["reason"]
        for row in rows
        if row["verdict"] == "bug"
    )


@pytest.mark.parametrize("name", ROUNDING)
def test_rounding_is_no_bug(name: str) -> None:
    targets, asked = ROUNDING[name]
    found = {row["verdict"]: row["reason"] for row in difference(targets, **asked)}
    assert found.keys() <= {"rounding", "same"}, found


def test_finite_rows_without_keys_are_a_convention_and_nan_is_a_bug() -> None:
    def hidden_by_inf(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return hide(query @ key.mT / math.sqrt(query.shape[-1]), attn_mask).softmax(-1) @ value

    for other, verdict in ((finite_mask, "convention"), (hidden_by_inf, "bug")):
        rows = {row["call"]: row for row in difference([spec(eager), spec(other)])}
        (empty,) = (row for call, row in rows.items() if call.endswith("without keys"))
        assert empty["verdict"] == verdict
        beside = {row["verdict"] for row in rows.values() if row is not empty}
        assert beside <= {"rounding", "same"}


def test_positions_that_start_anew_are_placed_where_they_are_turned() -> None:
    for row in difference([decoder(start=1)], **CACHE):
        assert all("angles = places" in operation for operation in row["operations"])


def test_three_dtypes_are_compared_with_the_first() -> None:
    values = ("float64", "float32", "bfloat16")
    rows = difference([spec(eager)], question="dtype", values=values)
    assert {(row["first"], row["second"]) for row in rows} == {
        ("float64", "float32"),
        ("float64", "bfloat16"),
    }
    assert {row["verdict"] for row in rows} <= {"rounding", "same"}


def test_a_call_that_one_way_refuses_is_left_out_with_its_error() -> None:
    def boolean_only(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return eager(query, key, value, None if attn_mask is None else ~~attn_mask)

    rows = difference([spec(eager), spec(boolean_only)])
    (left_out,) = (row for row in rows if row["verdict"] == NOT_COMPARED)
    assert "floating mask" in left_out["call"]
    assert "boolean_only raises TypeError: ~" in left_out["reason"]


def test_a_way_that_takes_no_call_is_one_error() -> None:
    def broken(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        raise ValueError("never\nin two lines")

    with pytest.raises(UsageError, match=r"no call can be compared: broken raises .*: never\.$"):
        difference([spec(eager), spec(broken)])
