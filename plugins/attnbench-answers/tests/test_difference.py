"""Bug or rounding: rebuilt questions from trackers, and where two ways part."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnbench_answers.calls import made
from attnbench_answers.comparisons import difference
from attnbench_answers.difference import Difference, compare_ways
from attnbench_answers.ways import Way
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnbench.cases.case import Case
from attnbench.cli import main
from attnbench.errors import InputsError, UsageError
from attnbench.saved_inputs import save_inputs
from attnbench.subject.lookup import resolve
from attnbench.subject.tracing import traced

X = torch.randn(2, 9, 16, generator=torch.Generator().manual_seed(0))


class Block(nn.Module):
    """A self-attention block whose attention is given."""

    def __init__(self, attend: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.norm, self.attend = nn.LayerNorm(16), attend
        self.query, self.key, self.value, self.out = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, hidden: Tensor) -> Tensor:
        x = self.norm(hidden)
        heads = (
            proj(x).unflatten(-1, (2, 8)).transpose(1, 2)
            for proj in (self.query, self.key, self.value)
        )
        return hidden + self.out(self.attend(*heads).transpose(1, 2).flatten(-2))


def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1) @ value


def scaled_first(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return ((query * query.shape[-1] ** -0.5) @ key.mT).softmax(-1) @ value


def without_softmax(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return (powers @ value) / powers.sum(-1, keepdim=True)


def in_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    parts = [query[..., i : i + 1, :] for i in range(query.shape[-2])]
    return torch.cat([eager(part, key, value) for part in parts], -2)


def softmax_in_half(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if query.dtype == torch.float32:
        scores = scores.bfloat16()
    return scores.softmax(-1).to(value.dtype) @ value


def other_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key, value, scale=1 / query.shape[-1])


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key, value, is_causal=True)


def last_key_lost(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key[..., :-1, :], value[..., :-1, :])


def heads_swapped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key, value.flip(1))


def coarse_scale(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return sdpa(query, key, value, scale=round(query.shape[-1] ** -0.5, 3))


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT  # the scale is forgotten
    return scores.softmax(-1) @ value


def enlarged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT
    scores = scores * query.shape[-1] ** -0.5
    weights = scores.softmax(-1)
    weights = weights * 1.5
    return weights @ value


def _way(attend: Any, dtype: torch.dtype = torch.float32) -> Way:
    module = Block(attend).to(dtype).eval()
    return Way(attend.__name__, module, lambda module, given: module(given[0]), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("other", [sdpa, scaled_first, without_softmax, in_blocks])
def test_other_orders_of_the_same_sums_are_rounding(other: Any, dtype: torch.dtype) -> None:
    found = compare_ways(_way(eager, dtype), _way(other, dtype), [X])
    assert found.verdict in ("rounding", "same"), found.reason
    assert found.units < 4


def test_the_same_module_in_a_narrower_dtype_is_rounding() -> None:
    assert compare_ways(_way(eager, torch.bfloat16), _way(eager), [X]).verdict == "rounding"


def _attention(attend: Any, dtype: torch.dtype = torch.float32) -> Way:
    def call(_: nn.Module, given: Any) -> Tensor:
        return attend(*given)

    return Way(attend.__name__, nn.Identity(), call, dtype)


def _long(seed: int, spread: float = 1.0) -> list[Tensor]:
    torch.manual_seed(seed)
    query, key = torch.randn(1, 2, 64, 64), torch.randn(1, 2, 512, 64)
    return [query * spread, key * spread, torch.randn(1, 2, 512, 64)]


def in_fewer_digits(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The products as a tensor core takes them from numbers of 10 bits."""
    if query.dtype == torch.float32:
        query, key = ((t.view(torch.int32) & ~0x1FFF).view(torch.float32) for t in (query, key))
    return eager(query, key, value)


@pytest.mark.parametrize("seed", range(4))
def test_sums_of_many_terms_lose_as_a_walk_does(seed: int) -> None:
    found = compare_ways(_attention(eager), _attention(sdpa), _long(seed))
    assert found.verdict == "rounding", found.reason
    assert compare_ways(_attention(eager), _attention(in_fewer_digits), _long(seed)).units > 100


@pytest.mark.parametrize("other", [eager, sdpa])
def test_what_large_scores_lose_in_half_types_is_rounding(other: Any) -> None:
    found = compare_ways(_attention(other), _attention(other, torch.bfloat16), _long(0, 10.0))
    assert found.verdict == "rounding", found.reason


def test_a_choice_that_rounded_inputs_change_is_rounding() -> None:
    (row,) = difference(["hard"], question="dtype", values=("float32", "bfloat16"))[:1]
    assert row["verdict"] == "rounding", row["reason"]
    assert row["units"] > 4


@pytest.mark.parametrize(
    "other", [softmax_in_half, other_scale, causal, last_key_lost, heads_swapped, coarse_scale]
)
def test_a_mistake_is_a_bug(other: Any) -> None:
    found = compare_ways(_way(eager), _way(other), [X])
    assert found.verdict == "bug"
    assert found.units > 4
    assert found.reason


def test_a_loss_of_precision_is_told_of_the_way_that_has_it_and_placed() -> None:
    found = compare_ways(_way(eager), _way(softmax_in_half), [X])
    assert found.float64_units < 4
    assert "softmax_in_half is off by" in found.reason
    assert "bfloat16 at test_difference.py" in found.operations[0]
    assert "scores.bfloat16()" in found.operations[0] or "softmax(-1)" in found.operations[0]


def test_other_weights_part_in_the_submodule_that_has_them() -> None:
    first, second = _way(eager), _way(eager)
    with torch.no_grad():
        second.module.get_parameter("key.weight").mul_(1.01)
    found = compare_ways(first, second, [X])
    assert (found.verdict, found.parted_in) == ("bug", "key")


def test_each_side_names_its_own_line() -> None:
    found = compare_ways(_way(eager), _way(without_softmax), [X])
    assert found.operations == ()
    found = compare_ways(_way(eager), _way(last_key_lost), [X])
    assert "eager" in found.operations[0]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [(unscaled, "# the scale is forgotten"), (enlarged, "weights = weights * 1.5")],
)
def test_the_wrong_line_is_named_beside_fused_attention(wrong: Any, line: str) -> None:
    found = compare_ways(_way(wrong), _way(sdpa), [X])
    assert line in found.operations[0]


def masked(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.mT) * query.shape[-1] ** -0.5
    mask = torch.ones_like(scores, dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ value


def masked_and_truncated(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = (query @ key.mT) * query.shape[-1] ** -0.5
    mask = torch.ones_like(scores, dtype=torch.bool).tril()
    scores = scores.masked_fill(~mask, -math.inf)
    weights = scores.softmax(-1)
    narrow = torch.bfloat16 if weights.dtype == torch.float32 else weights.dtype
    return weights.to(narrow).to(value.dtype) @ value


def test_hidden_scores_are_no_loss() -> None:
    found = compare_ways(_attention(masked), _attention(masked_and_truncated), _long(0))
    assert found.verdict == "bug"
    assert "weights.to(narrow)" in found.operations[0]


def test_a_mask_that_is_left_out_is_named_though_the_other_side_is_fused() -> None:
    found = compare_ways(_attention(masked), _attention(sdpa), _long(0))
    assert "scores.masked_fill(" in found.operations[0]


def capped(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = torch.tanh(scores / 3) * 3
    return scores.softmax(-1) @ value


def uncapped_by_blocks(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    output, total = torch.zeros_like(query), torch.zeros_like(query[..., :1])
    for keys, values in zip(key.split(100, -2), value.split(100, -2), strict=True):
        powers = (query @ keys.mT * query.shape[-1] ** -0.5).exp()
        output, total = output + powers @ values, total + powers.sum(-1, keepdim=True)
    return output / total


def test_results_of_blocks_are_compared_with_the_whole() -> None:
    found = compare_ways(_attention(capped), _attention(uncapped_by_blocks), _long(0))
    assert found.verdict == "bug"
    assert "torch.tanh(scores / 3)" in found.operations[0]


@pytest.mark.filterwarnings("ignore:flex_attention called without")
def test_an_operator_that_torch_traces_has_the_line_that_calls_it() -> None:
    tensors = [torch.randn(1, 2, 3, 8) for _ in range(3)]
    with torch.no_grad(), traced(nn.Identity()) as trace:
        flex_attention(*tensors)  # a line of its own
    assert trace.operations[-1].where.endswith("flex_attention(*tensors)  # a line of its own")


def test_nan_on_one_side_is_a_bug_with_its_place() -> None:
    def empty(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = eager(query, key, value)
        output[0, 0, 3] = math.nan
        return output

    found = compare_ways(_way(eager), _way(empty), [X])
    assert found.verdict == "bug"
    assert "at [0, 3, 0]" in found.reason
    assert "nan" in found.reason


def test_a_random_way_and_other_shapes_are_one_error() -> None:
    def random(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager(query, key, value) + torch.rand(1)

    with pytest.raises(UsageError, match=r"another output each time \(rand at test_difference"):
        compare_ways(_way(eager), _way(random), [X])
    shorter = Way("shorter", Block(eager), lambda module, given: module(given[0][:1]), X.dtype)
    with pytest.raises(UsageError, match="one shape"):
        compare_ways(_way(eager), shorter, [X])


@pytest.mark.parametrize(
    ("targets", "asked"),
    [
        (["additive", "additive/factorised"], {}),
        (["scaled_dot", "scaled_dot/fused"], {"dtype": "bfloat16"}),
        (["scaled_dot"], {"question": "batch"}),
        (["rotary_attention"], {"question": "paths", "values": ("prefill", "decode")}),
        (["sliding_window_attention"], {"question": "paths", "values": ("cached", "chunks")}),
        (["alibi_attention"], {"question": "dtype", "values": ("float32", "bfloat16")}),
        (["rotary_attention"], {"question": "batch"}),
    ],
    ids=str,
)
def test_right_subjects_differ_by_rounding_only(targets: list[str], asked: Any) -> None:
    rows = difference(targets, **asked)
    assert rows
    assert {row["verdict"] for row in rows} <= {"rounding", "same"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["scaled_dot"], "compares two subjects"),
        (["scaled_dot", "dot", "--dtype", "float3"], "scaled_dot supports float64"),
        (["scaled_dot", "rotary_attention"], "one is a layer"),
        (
            ["additive", "bilinear"],
            "cannot be compared: key_proj.weight is (16, 16) in one, and is missing",
        ),
        (["additive", "--paths", "prefill,decode"], "additive has none"),
        (["rotary_attention", "--paths", "prefill,decod"], "Did you mean 'decode'"),
        (["rotary_attention", "--paths", "prefill"], "compares two or more"),
        (["rotary_attention", "--batch", "--paths", "prefill,decode"], "ask one at a time"),
        (["scaled_dot", "dot", "--inputs", "none.safetensors"], "there is no file"),
        (["additive", "additive", "--weights", "none.safetensors"], "--weights none.safetensors"),
    ],
    ids=str,
)
def test_a_mistaken_question_is_one_line(arguments: list[str], told: str, capsys: Any) -> None:
    assert main(["diff", *arguments]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "Traceback" not in printed


def test_weights_of_a_whole_model_are_taken_without_embeddings_and_head(tmp_path: Any) -> None:
    (subject,) = resolve("rotary_attention")
    case = Case((2,), query_size=16, key_size=16, value_size=16)
    state = dict(subject.build(case)[0].state_dict())
    file = tmp_path / "model.safetensors"
    save_file({**state, "embed.weight": X, "lm_head.weight": X.clone()}, file)
    made(subject, case, str(file))
    save_file({**state, "layers.2.norm.weight": X}, file)
    with pytest.raises(
        InputsError, match=r"do not fit .*Unexpected key.*layers\.2\.norm"
    ) as caught:
        made(subject, case, str(file))
    assert "\n" not in str(caught.value)


def test_the_command_prints_the_verdict_and_exits_with_1_for_a_bug(capsys: Any) -> None:
    assert main(["diff", "scaled_dot", "dot"]) == 1
    printed = capsys.readouterr().out
    assert "bug: scaled_dot and dot compute different things" in printed
    assert "query @ key.mT" in printed


def test_nan_in_both_is_a_bug_of_both_and_an_error_where_it_is_given() -> None:
    def broken(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(query, key, value) / torch.zeros(())

    found = compare_ways(_way(broken), _way(broken), [X])
    assert found.verdict == "bug"
    assert "288 of 288 elements are NaN or infinite in both" in found.reason
    given = X.clone()
    given[0, 0, 0] = math.nan
    with pytest.raises(UsageError, match="the inputs hold NaN or infinity"):
        compare_ways(_way(eager), _way(sdpa), [given])
    cleaned = _way(lambda *tensors: sdpa(*(tensor.nan_to_num() for tensor in tensors)))
    reason = compare_ways(_way(eager), cleaned, [given]).reason
    assert "eager gives nan" in reason
    assert reason.endswith("and the inputs hold NaN or infinity")


def test_own_tensors_that_are_rounded_are_told(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "own.safetensors"
    query, key, value = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)
    save_inputs(file, query, key, value)
    for dtype, told in (("float32", ", rounded from float64 to float32"), ("float64", "")):
        arguments = ["scaled_dot", "scaled_dot/fused", "--dtype", dtype, "--inputs", str(file)]
        assert main(["diff", *arguments, "--json"]) == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert row["call"] == f"{file}{told}"


def test_many_roundings_are_tried_only_where_few_explain_too_little() -> None:
    class Counted(Block):
        calls = 0

        def forward(self, hidden: Tensor) -> Tensor:
            Counted.calls += 1
            return super().forward(hidden)

    def calls_of(other: Any) -> int:
        Counted.calls = 0
        ways = [
            Way("", Counted(attend), lambda module, given: module(given[0]), torch.float32)
            for attend in (eager, other)
        ]
        compare_ways(ways[0], ways[1], [X])
        return Counted.calls

    def slightly_off(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return eager(query, key, value) * (1 + 2e-5)

    assert calls_of(scaled_first) < 12
    assert calls_of(coarse_scale) <= 12  # no number of them explains it
    assert calls_of(slightly_off) > 20


def test_what_float64_tells_apart_is_a_bug_though_half_types_round_it_away() -> None:
    def shifted(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return sdpa(query, key, value) * 1.001

    found = compare_ways(_way(eager, torch.bfloat16), _way(shifted, torch.bfloat16), [X])
    assert found.verdict == "bug"
    assert found.float64_units < 4
    assert "units of float32" in found.reason


def test_a_difference_is_plain_data() -> None:
    found = compare_ways(_way(eager), _way(sdpa), [X])
    assert isinstance(found, Difference)
    assert set(found.to_dict()) >= {"verdict", "units", "reason", "parted_in"}
