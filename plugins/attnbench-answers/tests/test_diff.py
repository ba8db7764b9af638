"""Bug or rounding: questions from trackers, rebuilt, and where two ways part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_answers.calls import made
from attnbench_answers.comparisons import NOT_COMPARED, difference
from attnbench_answers.difference import Difference, compare_ways
from attnbench_answers.ways import Way
from attnbench_zoo.right.layers import BANDED
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnbench import Case, UsageError
from attnbench.adapters import sdpa as adapt
from attnbench.cli import main
from attnbench.errors import InputsError
from attnbench.saved_inputs import save_inputs
from attnbench.testing import resolve

X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))
Attend = Callable[..., Tensor]


def pool(query: Tensor, key: Tensor, value: Tensor, scale: float, mask: Any = None) -> Tensor:
    scores = (query @ key.mT) * scale
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    return scores.softmax(-1).nan_to_num(0.0) @ value


def eager(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    return pool(query, key, value, query.shape[-1] ** -0.5, attn_mask)


def scaled_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return pool(query * query.shape[-1] ** -0.5, key, value, 1.0)


def in_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return torch.cat(
        [eager(query[..., i : i + 1, :], key, value) for i in range(query.shape[-2])], -2
    )


def by_powers(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ value) / powers.sum(-1, keepdim=True)


def softmax_in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if query.dtype == torch.float32:
        scores = scores.bfloat16()
    return scores.softmax(-1).to(value.dtype) @ value


def other_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return pool(query, key, value, 1 / query.shape[-1])


def ten_bits(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The products as a tensor core takes them from numbers of 10 bits."""
    if query.dtype == torch.float32:
        query, key = (
            (t.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (query, key)
        )
    return eager(query, key, value)


class Block(nn.Module):
    """A self-attention block whose attention is given."""

    def __init__(self, attend: Attend) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.attend = nn.LayerNorm(16), attend
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        x = self.norm(hidden)
        heads = [
            proj(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for proj in (self.query, self.key, self.value)
        ]
        return hidden + self.out(self.attend(*heads).transpose(1, 2).flatten(-2))


def way(attend: Attend, dtype: torch.dtype = torch.float32) -> Way:
    module = Block(attend).to(dtype).eval()
    return Way(attend.__name__, module, lambda module, given: module(given[0]), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [sdpa, scaled_first, by_powers, in_blocks])
def test_other_orders_of_the_same_sums_are_rounding(other: Any, dtype: torch.dtype) -> None:
    found = compare_ways(way(eager, dtype), way(other, dtype), [X])
    assert found.verdict in ("rounding", "same"), found.reason
    assert isinstance(found, Difference)
    assert found.units < 4


@pytest.mark.parametrize("spread", [1.0, 10.0])
def test_sums_of_many_terms_and_large_scores_lose_as_a_walk_does(spread: float) -> None:
    query, key, value = torch.randn(3, 1, 2, 512, 64, generator=torch.Generator().manual_seed(0))
    given = [query[..., :64, :] * spread, key * spread, value]

    def plain(attend: Attend, dtype: torch.dtype = torch.float32) -> Way:
        return Way(attend.__name__, nn.Identity(), lambda _, tensors: attend(*tensors), dtype)

    assert compare_ways(plain(eager), plain(sdpa), given).verdict == "rounding"
    assert compare_ways(plain(sdpa), plain(sdpa, torch.bfloat16), given).verdict == "rounding"
    assert compare_ways(plain(eager), plain(ten_bits), given).units > 100


def test_a_loss_of_precision_and_a_wrong_line_are_bugs_and_placed() -> None:
    found = compare_ways(way(eager), way(softmax_in_half), [X])
    assert (found.verdict, found.units > 4) == ("bug", True)
    assert "softmax_in_half is off by" in found.reason
    assert "scores.bfloat16()" in found.operations[0] or "softmax(-1)" in found.operations[0]
    found = compare_ways(way(other_scale), way(sdpa), [X])
    assert "compute different things" in found.reason
    assert "(query @ key.mT) * scale" in found.operations[0]


def test_other_weights_part_in_the_submodule_that_has_them() -> None:
    first, second = way(eager), way(eager)
    with torch.no_grad():
        second.module.get_parameter("key.weight").mul_(1.01)
    found = compare_ways(first, second, [X])
    assert (found.verdict, found.parted_in) == ("bug", "key")


def test_what_float64_tells_apart_is_a_bug_though_half_types_round_it_away() -> None:
    def shifted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(query, key, value) * 1.001

    found = compare_ways(way(eager, torch.bfloat16), way(shifted, torch.bfloat16), [X])
    assert found.verdict == "bug"
    assert "units of float32" in found.reason


def test_nan_is_a_bug_of_the_way_or_ways_that_give_it_and_an_error_where_it_is_given() -> None:
    def empty(*tensors: Tensor) -> Tensor:
        output = eager(*tensors)
        output[0, 0, 3] = math.nan
        return output

    def broken(*tensors: Tensor) -> Tensor:
        return sdpa(*tensors) / torch.zeros(())

    assert "at [0, 3, 0]" in compare_ways(way(eager), way(empty), [X]).reason
    both = compare_ways(way(broken), way(broken), [X])
    assert both.verdict == "bug"
    assert "288 of 288 elements are NaN or infinite in both" in both.reason
    given = X.clone()
    given[0, 0, 0] = math.nan
    with pytest.raises(UsageError, match="the inputs hold NaN or infinity"):
        compare_ways(way(sdpa), way(sdpa), [given])


def test_a_random_way_and_other_shapes_are_one_error() -> None:
    def random(*tensors: Tensor) -> Tensor:
        return eager(*tensors) + torch.rand(1)

    with pytest.raises(UsageError, match=r"another output each time \(rand at test_diff"):
        compare_ways(way(eager), way(random), [X])
    shorter = Way("shorter", Block(eager), lambda module, given: module(given[0][:1]), X.dtype)
    with pytest.raises(UsageError, match="one shape"):
        compare_ways(way(eager), shorter, [X])


def aligned(corner: int) -> Any:
    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, is_causal: bool = False
    ) -> Tensor:
        shape, shift = (query.shape[-2], key.shape[-2]), corner * (key.shape[-2] - query.shape[-2])
        mask = torch.ones(shape, dtype=torch.bool).tril(shift) if is_causal else attn_mask
        return eager(query, key, value, mask)

    return adapt(attend, name=f"corner_{corner}")


SHIFTED = "attnbench_zoo.bugs.offset_raised_by_the_prompt_again:SPEC"
PATHS = {"question": "paths", "values": ("prefill", "decode", "chunks")}
ASKED: dict[str, tuple[list[Any], dict[str, Any], str]] = {
    "causal corner": ([aligned(0), aligned(1)], {}, "bug"),
    "positions in a cache": ([SHIFTED], PATHS, "bug"),
    "positions in a cache in half": ([SHIFTED], {**PATHS, "dtype": "bfloat16"}, "bug"),
    "a window": ([BANDED, "attnbench_zoo.bugs.window_one_too_wide:SPEC"], {}, "bug"),
    "cache": (["rotary_attention"], PATHS, "rounding"),
    "cache in half": (["rotary_attention"], {**PATHS, "dtype": "bfloat16"}, "rounding"),
    "batch": (["rotary_attention"], {"question": "batch"}, "rounding"),
    "dtypes": (
        ["alibi_attention"],
        {"question": "dtype", "values": ("float64", "float32", "bfloat16")},
        "rounding",
    ),
    "a choice": (["hard"], {"question": "dtype", "values": ("float32", "bfloat16")}, "rounding"),
    "blocks": (["scaled_dot", "scaled_dot/fused"], {"dtype": "bfloat16"}, "rounding"),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_question_is_answered(name: str) -> None:
    targets, asked, verdict = ASKED[name]
    rows = difference(targets, **asked)
    found = {row["verdict"]: row["reason"] for row in rows}
    if verdict == "rounding":
        assert found.keys() <= {"rounding", "same"}, found
    else:
        assert "bug" in found
        bugs = [row for row in rows if row["verdict"] == "bug"]
        assert all(r["operations"] or r["parted_in"] or "off by" in r["reason"] for r in bugs)


def test_rows_without_keys_are_a_convention_and_refused_calls_are_left_out() -> None:
    def mean_of_all(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        if query.shape[-2] > 60:
            raise ValueError("too long")
        mask = torch.tensor(True) if attn_mask is None else attn_mask
        return (query @ key.mT * query.shape[-1] ** -0.5).where(mask, -1e9).softmax(-1) @ value

    rows = difference([adapt(eager, name="eager"), adapt(mean_of_all, name="mean_of_all")])
    verdicts = {row["call"]: row["verdict"] for row in rows}
    assert "convention" in [v for call, v in verdicts.items() if call.endswith("without keys")]
    (left_out,) = (row for row in rows if row["verdict"] == NOT_COMPARED)
    assert left_out["reason"] == "mean_of_all raises ValueError: too long"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["scaled_dot", "dot", "--dtype", "float3"], "scaled_dot supports float64"),
        (["scaled_dot", "rotary_attention"], "one is a layer"),
        (["additive", "bilinear"], "key_proj.weight is (16, 16) in one, and is missing"),
        (["additive", "--paths", "prefill,decode"], "additive has none"),
        (["rotary_attention", "--paths", "prefill,decod"], "Did you mean 'decode'"),
        (["rotary_attention", "--batch", "--paths", "prefill,decode"], "ask one at a time"),
        (["additive", "additive", "--weights", "none.safetensors"], "--weights none.safetensors"),
    ],
    ids=str,
)
def test_a_mistaken_question_is_one_line(arguments: list[str], told: str, capsys: Any) -> None:
    assert main(["diff", *arguments]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "Traceback" not in printed


def test_own_tensors_that_are_rounded_are_told(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "own.safetensors"
    save_inputs(file, *torch.randn(3, 1, 2, 5, 8, dtype=torch.float64))
    for dtype, told in (("float32", ", rounded from float64 to float32"), ("float64", "")):
        arguments = ["scaled_dot", "scaled_dot/fused", "--dtype", dtype, "--inputs", str(file)]
        assert main(["diff", *arguments, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["call"] == f"{file}{told}"


def test_weights_of_a_whole_model_are_taken_without_embeddings_and_head(tmp_path: Path) -> None:
    (subject,) = resolve("rotary_attention")
    case, file = Case((2,), query_size=16, key_size=16, value_size=16), tmp_path / "m.safetensors"
    state = dict(subject.build(case)[0].state_dict())
    save_file({**state, "embed.weight": X, "lm_head.weight": X.clone()}, file)
    made(subject, case, str(file))
    save_file({**state, "layers.2.norm.weight": X}, file)
    with pytest.raises(InputsError, match=r"do not fit .*Unexpected key.*layers\.2\.norm"):
        made(subject, case, str(file))
