"""The judge's own calls have what the names of their levels say."""

import math
import random
from collections.abc import Iterator

import pytest
import torch
from attnbench_judge.inputs.axes import AXES, FEW, MANY, axes_for, typical_rows
from attnbench_judge.inputs.covering import Coverage, Row
from attnbench_judge.inputs.drawn_streams import Deck, stream_of
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream
from torch import Tensor

NAMES = {"attn_mask", "is_causal", "scale", "enable_gqa"}


def streams(style: str = "sdpa") -> Iterator[tuple[Row, Stream]]:
    chance = random.Random(0)
    secret = Secret(chance.getrandbits(62))
    causal = "top_left" if style == "sdpa" else "bottom_right"
    axes = axes_for(NAMES, causal=causal, grouped=True, style=style)
    deck = Deck(chance)
    for row in Coverage(axes, (FEW.fits, MANY.fits), chance).rows():
        stream = stream_of(row, style, causal, deck, secret)
        stream.draw()
        yield row, stream


def as_named(row: Row, stream: Stream) -> dict[str, bool]:
    """For levels whose names tell what a tensor is, whether it is that."""
    query, key, value = stream.tensors()
    mask = stream.keywords.get("attn_mask")
    batch, heads, q_len, size = query.shape
    kv_len = key.shape[-2]
    lost = None if mask is None or mask.dtype == torch.bool else (mask.float() < -2e4).all(-1)
    return {
        "L and S powers of two": q_len.bit_count() == kv_len.bit_count() == 1,
        "L and S next to powers of two": all(
            1 in ((n - 1).bit_count(), (n + 1).bit_count()) for n in (q_len, kv_len)
        ),
        "several items and heads of long rows": batch > 1 < heads and min(q_len, kv_len) > 128,
        "views of one packed tensor": query.data_ptr() < key.data_ptr()
        and query.untyped_storage().data_ptr() == value.untyped_storage().data_ptr(),
        "misaligned query": query.data_ptr() % 16 != 0,
        "misaligned value": value.data_ptr() % 16 != 0,
        "one tensor is query, key and value": query is key is value,
        "one tensor is query and key": query is key is not value,
        "one tensor is key and value": key is value,
        "value of the key's first features": value.data_ptr() == key.data_ptr()
        and value.stride() == key.stride()
        and value.shape[-1] <= size,
        "queries among the keys, or keys among the queries": q_len != kv_len
        and query.untyped_storage().data_ptr() == key.untyped_storage().data_ptr()
        and query.data_ptr() + query[0, 0].nbytes == key.data_ptr() + key[0, 0].nbytes,
        "query with strided features": size == 1 or query.stride(-1) == 2,
        "key with strided features or overlapping rows": size == 1
        or key.stride(-1) == 2
        or key.stride(-2) == 1,
        "value in column-major order": value.stride(-2) == 1 or 1 in value.shape[-2:],
        "key of one item for all of the batch": key.stride(0) == 0 and batch > 1,
        "query within a larger tensor": query.untyped_storage().nbytes()
        > query.numel() * query.element_size(),
        "one head of keys": key.shape[1] == 1 < heads,
        "grouped heads": 1 < key.shape[1] < heads and heads % key.shape[1] == 0,
        "causal, L > S": q_len > kv_len and stream.keywords.get("is_causal", False),
        "causal, L < S": q_len < kv_len and stream.keywords.get("is_causal", False),
        "mask (H, L, S)": mask is not None and mask.shape == (heads, q_len, kv_len),
        "mask (L, S)": mask is not None and mask.shape == (q_len, kv_len),
        "mask (B, H, L, 1)": mask is not None and mask.shape == (batch, heads, q_len, 1),
        "mask (1, L, S) or (1, S)": mask is not None
        and mask.shape in ((1, q_len, kv_len), (1, kv_len)),
        "mask (B, H, 1, S) or (1, 1, L, S)": mask is not None
        and mask.shape in ((batch, heads, 1, kv_len), (1, 1, q_len, kv_len)),
        "query of one head for all": query.stride(1) == 0 and heads > 1,
        "key of one head for all": key.shape[1] == 1 or key.stride(1) == 0,
        "value of one head for all": value.shape[1] == 1 or value.stride(1) == 0,
        "scale above 20": stream.keywords.get("scale", 0) >= 20,
        "E of 41 to 63": 41 <= size <= 63,
        "mask in column-major order": mask is not None
        and (mask.stride(-2) == 1 or 1 in mask.shape[-2:]),
        "mask within a larger one": mask is not None and mask.storage_offset() > 0,
        "mask with a stride of 0": mask is not None and (heads * q_len == 1 or 0 in mask.stride()),
        "floating mask, rows far below 0": mask is not None
        and (mask.stride(-2) == 0 or mask.shape[-2] < 3 or (lost is not None and bool(lost.any()))),
        "negative scale": stream.keywords.get("scale", 0) < 0,
        "scale of 0": stream.keywords.get("scale") == 0,
        "H = 7": heads == 7,
        "B of 33 to 128": 32 < batch <= 128,
        "E = 1": size == 1,
        "Ev = 1": value.shape[-1] == 1,
        "queries of 0 or some keys of 0": not query.any() or kv_len < 5 or not key[..., 4, :].any(),
        "equal keys or pairs of equal rows": kv_len < 2
        or torch.equal(key[..., 0, :], key[..., 1, :]),
        "values of 100,000 and more": value.numel() < 20 or bool(value.abs().max() > 1e4),
        "E of 513 to 1024": 512 < size <= 1024,
        "S of 4097 to 8192": 4096 < kv_len <= 8192,
        "L = S": q_len == kv_len,
        "Ev < E": value.shape[-1] < size,
        "Ev > E": value.shape[-1] > size,
        "float16": query.dtype == torch.float16,
    }


def test_calls_are_what_the_names_of_their_levels_say() -> None:
    seen: set[str] = set()
    for row, stream in streams():
        levels = set(row.values())
        for level, true in as_named(row, stream).items():
            assert true or level not in levels, (level, stream.case.id)
            seen |= {level} & levels
    assert len(seen) == len(as_named(row, stream))


def masks_of(level: str, count: int, **levels: str) -> Iterator[Tensor]:
    """Masks (B, H, L, S) of a level, with more than one query and key."""
    row = {axis: next(iter(levels)) for axis, levels in AXES.items()}
    row |= {"L": "L of 129 to 512", "S": "S of 129 to 512", "mask": level, **levels}
    for seed in range(count):
        stream = stream_of(row, "sdpa", "top_left", Deck(random.Random(seed)), Secret(seed))
        yield stream.keywords["attn_mask"]


def kinds_of(mask: Tensor) -> set[str]:
    """What a boolean mask may be."""
    alike = bool((mask == mask[..., :1, :]).all())
    begins = mask & ~torch.nn.functional.pad(mask, (1, -1))
    is_run = bool((begins.sum(-1) == 1).all())
    eights = mask[..., :128, :128].unflatten(-1, (16, 8)).unflatten(-3, (16, 8))
    holds = {
        "lengths": is_run and alike and mask[..., 0].all(),
        "window": is_run and not alike and (begins.int().argmax(-1).diff() >= 0).all(),
        "documents": is_run and (mask[0, 0].unique(dim=0).sum(0) <= 1).all(),
        "tiles": (eights == eights[..., :1, :, :1]).all(),
    }
    return {name for name, true in holds.items() if true}


@pytest.mark.parametrize("kind", ["lengths", "window", "documents", "tiles"])
def test_masks_are_such_as_models_have(kind: str) -> None:
    boolean = {"form": "boolean", "kinds": [kind]}
    (level,) = (name for name, told in AXES["mask"].items() if told == boolean)
    for mask in masks_of(level, 8):
        assert mask.any(-1).all()
        assert not mask.all()
        assert kind in kinds_of(mask)


def test_floating_masks_are_such_as_models_have() -> None:
    least = torch.finfo(torch.float16).min
    hidden = [*masks_of("floating mask with -inf", 24, dtype="float16")]
    two_numbers = [{*mask.unique().tolist()} for mask in hidden]
    assert {0.0, least} in two_numbers
    assert {0.0, -math.inf} in two_numbers
    assert any(len(numbers) > 100 for numbers in two_numbers)
    assert all((mask > -1e3).any(-1).all() for mask in hidden)
    biases = [*masks_of("floating mask, finite", 12)]
    by_distance = [bool((mask[..., 1:, 1:] == mask[..., :-1, :-1]).all()) for mask in biases]
    assert {*by_distance} == {True, False}


@pytest.mark.parametrize(("style", "rows"), [("sdpa", 2), ("flash", 1)])
def test_keys_may_be_the_first_rows_of_longer_tensors(style: str, rows: int) -> None:
    row = {axis: next(iter(levels)) for axis, levels in AXES.items()}
    row |= {"layout of key": "key of the first rows of a longer tensor", "S": "S of 64 to 128"}
    stream = stream_of(
        row | {"B": "B = 2", "H": "H = 8"}, style, "top_left", Deck(random.Random(0)), Secret(0)
    )
    stream.draw()
    key = stream.tensors()[1]
    assert key.isfinite().all()
    assert key.storage_offset() == 0
    assert key.stride(rows - 1) > key.stride(rows) * key.shape[rows]  # of heads, or of items


def test_flash_calls_have_heads_behind_positions_and_no_keyword_for_groups() -> None:
    for count, (_, stream) in enumerate(streams("flash")):
        query, key, value = stream.tensors()
        assert query.shape[1] == stream.case.q_len
        assert key.shape[1] == value.shape[1] == stream.case.kv_len
        assert "enable_gqa" not in stream.keywords
        if count == 20:
            break


def test_no_mask_takes_a_score_out_of_the_range_of_float16() -> None:
    row = {axis: next(iter(levels)) for axis, levels in AXES.items()} | {
        "mask": "floating mask, rows far below 0",
        "dtype": "float16",
        "L": "L of 16 to 63",
        "scale": "scale above 2",
        "scores": "keys far from 0",
    }
    for seed in range(20):
        stream = stream_of(row, "sdpa", "top_left", Deck(random.Random(seed)), Secret(seed))
        stream.draw()
        query, key, _ = stream.tensors()
        scores = (query * stream.keywords["scale"]) @ key.mT + stream.keywords["attn_mask"]
        assert scores.isfinite().all(), stream.name


def test_numbers_are_drawn_within_intervals() -> None:
    """What a kernel of an attack asked for, which few levels had left out."""
    sizes, scales, greatest, rows = set(), [], 0.0, []
    for _, stream in streams():
        mask, scale = stream.keywords.get("attn_mask"), stream.keywords.get("scale")
        sizes.add(stream.case.query_size)
        scales += [] if scale is None else [scale]
        if mask is not None and mask.is_floating_point():
            finite = mask.float().masked_fill(mask.isinf(), -1e9)
            greatest = max(greatest, float(finite.max()))
            rows.append(finite.amax(-1).flatten())
    tops = torch.cat(rows)
    assert sum(41 <= size <= 63 for size in sizes) > 1
    assert sum(size % 8 != 0 for size in sizes if 8 < size < 64) > 3
    assert sum(size % 8 == 0 for size in sizes if 8 < size < 64) > 1
    assert any(scale > 20.5 for scale in scales)
    assert any(scale < -0.5 for scale in scales)
    assert any(-0.09 < scale < 0 for scale in scales)
    assert any(0 < scale < 0.009 for scale in scales)
    assert greatest > 6.5
    assert ((tops < -15) & (tops > -25000)).any()


def test_what_models_run_comes_in_every_judgement() -> None:
    axes = axes_for(NAMES, causal="top_left", grouped=True, style="sdpa")
    for seed in range(5):
        chance = random.Random(seed)
        rows = list(typical_rows(axes, chance))
        streams = [stream_of(row, "sdpa", "top_left", Deck(chance), Secret(seed)) for row in rows]
        found = {
            (one.case.dtype, one.case.query_size, one.case.q_len == 1, one.kv_lead[1] == 1)
            for one in streams
            if one.grouped and one.case.kv_len > 512
        }
        assert (len(streams), len(found)) == (18, 16)
    bare = axes_for((), causal="top_left", masks=(), grouped=False, style="sdpa")
    assert all(MANY.fits(row) for row in typical_rows(bare, random.Random(0)))
