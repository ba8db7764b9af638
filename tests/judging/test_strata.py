"""The judge's own calls: all strata in each judgement, and torch is right in all of them."""

import random
from collections.abc import Mapping

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as fused

from attnbench.judging.fresh_calls import Stream
from attnbench.judging.right_answers import error_of_all
from attnbench.judging.shared_bytes import copy_of
from attnbench.judging.strata import STRATA, streams_of
from attnbench.specs.conventions import Conventions

NAMES = {name: name for name in ("attn_mask", "is_causal", "scale")}
SDPA = Conventions(causal="top_left")


def streams(
    style: str = "sdpa", names: Mapping[str, str] = NAMES, conventions: Conventions = SDPA
) -> list[tuple[str, Stream | None]]:
    chance, generator = random.Random(), torch.Generator()
    generator.seed()
    return list(streams_of(names, style, conventions, chance, generator))


def test_torch_is_right_in_every_stratum() -> None:
    found = streams()
    assert {name for name, _ in found} == {one.name for one in STRATA}
    for name, stream in found:
        assert stream is not None, name
        stream.draw()
        given = {n: copy_of(v) if n == "attn_mask" else v for n, v in stream.keywords.items()}
        output = fused(*stream.tensors(), **given)
        assert error_of_all(stream.inputs(), output, [(0, [0])]) <= 1.0, name


def test_strata_have_what_their_names_say() -> None:
    found = {name: stream for name, stream in reversed(streams()) if stream is not None}
    for stream in found.values():
        stream.draw()
    packed = found["views of one packed tensor"].tensors()
    assert packed[1].storage_offset() > 0
    assert packed[0].untyped_storage().data_ptr() == packed[1].untyped_storage().data_ptr()
    assert all(t.data_ptr() % 16 for t in found["pointers that are not aligned"].tensors())
    assert 0 in copy_of(found["mask with a stride of 0"].keywords["attn_mask"]).stride()
    assert found["mask (H, L, S)"].keywords["attn_mask"].dim() == 3
    assert found["causal, L > S"].case.q_len > found["causal, L > S"].case.kv_len
    assert found["32 heads"].case.lead == (1, 32)
    floors = found["floating mask, rows far below 0"].keywords["attn_mask"]
    lost = (floors == torch.finfo(torch.float32).min).all(-1)
    assert lost.any()
    dtypes = {stream.case.dtype for _, stream in streams() if stream is not None}
    assert dtypes == {"float32", "bfloat16", "float16"}


@pytest.mark.parametrize(
    ("names", "conventions", "left_out"),
    [
        ({}, SDPA, {"scale above 2", "causal, L > S", "mask (H, L, S)"}),
        (NAMES, Conventions(causal="bottom_right"), {"causal, L > S"}),
        (NAMES, Conventions(masks=("boolean",), causal="top_left"), {"floating mask"}),
    ],
)
def test_what_a_callee_does_not_take_is_named(
    names: Mapping[str, str], conventions: Conventions, left_out: set[str]
) -> None:
    found = {name for name, stream in streams("flash", names, conventions) if stream is None}
    assert left_out <= found
    assert "L = 1" not in found
