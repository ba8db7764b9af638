"""Small functions, each with one convention set on purpose: what a probe infers is what is set."""

# mypy: disable-error-code="no-untyped-def"
from __future__ import annotations

import math
import shlex
import sys
from typing import Any

import pytest
import torch
from attnbench_zoo.right.conventions import FOLLOWING, Following
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa

import attnbench
from attnbench import adapters
from attnbench.adapters import multihead
from attnbench.calling.probing.probe_result import probe
from attnbench.cases.case import Case
from attnbench.errors import StyleError
from attnbench.registry.address import Address
from attnbench.specs.conventions import Conventions
from attnbench.subject.mechanism_subject import MechanismSubject


def make(
    layout="bhle",
    polarity=True,
    corner="br",
    empty="zeros",
    scale=lambda e: e**-0.5,
    stride=False,
    cap="before",
    base="e",
    drop="weights",
    wafter=False,
    inner=None,
    fill=-math.inf,
    add=False,
    win="pair",
    padding=True,
):
    def f(
        query,
        key,
        value,
        attn_mask=None,
        is_causal=False,
        dropout_p=0.0,
        softcap=None,
        window_size=None,
        return_weights=False,
        return_lse=False,
        key_padding_mask=None,
    ):
        dt = query.dtype
        if inner:
            query, key, value = (t.to(inner) for t in (query, key, value))
        if layout == "blhe":
            query, key, value = (t.transpose(1, 2) for t in (query, key, value))
        if query.dim() > 3:
            g = query.shape[1] // key.shape[1]
            key, value = (
                (t.repeat(1, g, 1, 1) if stride else t.repeat_interleave(g, 1))
                for t in (key, value)
            )
        q_len, kv_len = query.shape[-2], key.shape[-2]
        ok = torch.ones(q_len, kv_len, dtype=torch.bool)
        if is_causal or corner == "always":
            if corner == "square" and q_len != kv_len:
                raise ValueError("square")
            ok = ok.tril(0 if corner == "tl" else kv_len - q_len)
        if window_size is not None:
            d = (
                torch.arange(kv_len)
                - torch.arange(q_len)[:, None]
                - (kv_len - q_len) * (win != "tl")
            )
            if win in ("pair", "tl"):
                left, right = (10**6 if edge == -1 else edge for edge in window_size)
                ok = ok & (d >= -left) & (d <= right)
            elif win == "pairlim":
                ok = ok & (d >= -window_size[0]) & (d <= window_size[1])
            elif win == "pairx":
                ok = ok & (d > -window_size[0]) & (d < window_size[1])
            elif win == "one":
                ok = (
                    ok & (d > -window_size + 0) & (d <= 0)
                    if isinstance(window_size, int)
                    else 1 / 0
                )
            elif win == "oneinc":
                ok = ok & (d >= -window_size) & (d <= 0) if isinstance(window_size, int) else 1 / 0
        if attn_mask is not None:
            ok = ok & (attn_mask if polarity else ~attn_mask)
        if key_padding_mask is not None:
            row = key_padding_mask[:, None, None]
            ok = ok & (row if padding else ~row)
        s = query * scale(query.shape[-1]) @ key.mT
        if softcap and cap == "before":
            s = softcap * torch.tanh(s / softcap)
        s = (s + (~ok) * fill) if add else s.masked_fill(~ok, fill)
        if softcap and cap == "after":
            s = softcap * torch.tanh(s / softcap)
        if drop == "scores":
            s = torch.dropout(s, dropout_p, True)
        lse = s.logsumexp(-1) / (math.log(2) if base == "2" else 1)
        w = s.softmax(-1)
        if empty == "zeros":
            w = w.masked_fill(~ok.any(-1, keepdim=True), 0)
        if empty == "refused" and not ok.any(-1).all():
            raise ValueError("empty")
        if empty == "mean":
            w = w.masked_fill(~ok.any(-1, keepdim=True), 1 / kv_len)
        d = torch.dropout(w, dropout_p, True) if drop == "weights" else w
        o = d @ value
        if drop == "output":
            o = torch.dropout(o, dropout_p, True)
        if layout == "blhe":
            o = o.transpose(1, 2)
        o = o.to(dt)
        if return_lse:
            return o, lse
        return (o, d if wafter else w) if return_weights else o

    return f


FAMILY: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (
        {},
        {
            "layout": "(B, H, L, E)",
            "boolean": "True = may attend",
            "causal": "bottom_right",
            "empty_rows": "zeros",
            "scale": "1/sqrt(E)",
            "groups": "neighbours",
            "softcap": "before the mask",
            "dropout": "on weights, rescaled",
            "internal_dtype": None,
            "hidden_slots": "finite",
            "lse_base": "e",
            "weights": "before dropout",
            "window": "(left, right), own key besides",
        },
    ),
    ({"layout": "blhe"}, {"layout": "(B, L, H, E)"}),
    ({"polarity": False}, {"boolean": "True = hides"}),
    ({"corner": "tl"}, {"causal": "top_left"}),
    ({"corner": "square"}, {"causal": "square"}),
    ({"corner": "always"}, {"causal": "always"}),
    ({"empty": "mean"}, {"empty_rows": "mean"}),
    ({"empty": "nan"}, {"empty_rows": "nan"}),
    ({"empty": "refused"}, {"empty_rows": "refused"}),
    ({"scale": lambda e: 1}, {"scale": "1"}),
    ({"scale": lambda e: 1 / e}, {"scale": "1/E"}),
    ({"scale": lambda e: 0.3}, {"scale": "0.3 at E=4, 0.3 at E=16"}),
    ({"padding": True}, {"key_padding": "True = may attend"}),
    ({"padding": False}, {"key_padding": "True = hides"}),
    ({"stride": True}, {"groups": "stride"}),
    ({"cap": "after"}, {"softcap": "after the mask"}),
    ({"base": "2"}, {"lse_base": "2"}),
    ({"drop": "scores"}, {"dropout": "on scores", "weights": "after dropout"}),
    ({"drop": "output"}, {"dropout": "on the output"}),
    ({"wafter": True}, {"weights": "after dropout"}),
    ({"inner": torch.float32}, {"internal_dtype": "float32"}),
    ({"inner": torch.bfloat16}, {"internal_dtype": "bfloat16"}),
    ({"fill": -1e9}, {"mask_value": -1e9}),
    ({"fill": -1e4}, {"mask_value": -1e4}),
    ({"fill": -65504.0}, {"mask_value": -65504.0}),
    ({"fill": -1e9, "add": True}, {"mask_value": -1e9}),
    ({"win": "tl"}, {"window": "(left, right), own key besides, from the top left"}),
    ({"win": "pairlim"}, {"window": "(left, right), own key besides, -1 is a limit"}),
    ({"win": "pairx"}, {"window": "(left, right), own key counted, -1 is a limit"}),
    ({"win": "one"}, {"window": "one number of keys, own counted, causal"}),
    ({"win": "oneinc"}, {"window": "one number of keys before the own, causal"}),
]


@pytest.mark.parametrize(
    ("options", "changed"), FAMILY, ids=[str(sorted(w)) + str(n) for n, (_, w) in enumerate(FAMILY)]
)
def test_what_is_inferred_is_what_was_set(options, changed) -> None:
    found = probe(make(**options)).answers
    for question, value in {**FAMILY[0][1], **changed}.items():
        answer = found[question]
        if question in changed:
            assert answer.status == "inferred", answer
        if answer.status != "ambiguous":
            assert answer.value == value, answer


@pytest.mark.parametrize("right", FOLLOWING, ids=lambda right: right.spec.name)
def test_right_implementations_follow_what_is_inferred(right: Following) -> None:
    declared = {**vars(Conventions()), **right.spec.conventions}
    found = probe(right.spec).conventions
    for key, value in found.items():
        if key != "masks":
            assert value == declared[key], key
    assert set(found.get("masks", ())) <= {*Conventions(masks=declared["masks"]).masks}
    assert set(right.spec.conventions) - {"mask_value"} <= set(found)


def cosine(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    unit = torch.nn.functional.normalize
    return (unit(query, dim=-1) @ unit(key, dim=-1).mT).softmax(-1) @ value


def corner_by_length(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if is_causal:
        corner = 1 if scores.shape[-2] == 3 else 0
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(corner)
        scores = scores.masked_fill(~seen, -math.inf)
    return scores.softmax(-1) @ value


def group_of_all(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.repeat_interleave(query.shape[1] // key.shape[1], 1).mT
    return scores.softmax(-1) @ value.mean(1, keepdim=True).expand(-1, query.shape[1], -1, -1)


def hard(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    chosen = (query @ key.mT).argmax(-1)
    return torch.nn.functional.one_hot(chosen, key.shape[-2]).to(value.dtype) @ value


def adds_a_large_number(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = query @ key.mT * query.shape[-1] ** -0.5
    scores = scores if attn_mask is None else scores - 1e9 * ~attn_mask
    return scores.softmax(-1) @ value


def two_paths(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, need_weights: bool = False
) -> Any:
    if not need_weights:
        return sdpa(query, key, value, attn_mask)
    scores = query @ key.mT * query.shape[-1] ** -0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    return scores.softmax(-1) @ value, scores.softmax(-1)


@pytest.mark.parametrize(
    ("function", "question"),
    [
        (hard, "internal_dtype"),
        (adds_a_large_number, "empty_rows"),
        (cosine, "scale"),
        (corner_by_length, "causal"),
        (group_of_all, "layout"),
    ],
)
def test_what_fits_no_answer_is_ambiguous(function: Any, question: str) -> None:
    assert probe(function).answers[question].status == "ambiguous"


def lectured(queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Tensor:
    lengths = torch.full(keys.shape[:1], keys.shape[1]) if valid_lens is None else valid_lens
    hidden = torch.arange(keys.shape[1]) >= lengths.reshape(len(keys), -1, 1)
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    return scores.masked_fill(hidden, -1e6).softmax(-1) @ values


@pytest.mark.parametrize(("function", "style"), [(lectured, "textbook")])
def test_a_style_that_argument_names_show_is_proposed(function: Any, style: str) -> None:
    probed = probe(function)
    assert probed.options == f"--as {style}"
    assert isinstance(probed.spec, attnbench.MechanismSpec)


def test_the_spec_of_a_probe_calls_the_function_as_it_was_probed() -> None:
    function = make(layout="blhe", corner="tl")
    subject = MechanismSubject("f", probe(function).spec, Address("f"))
    module, inputs = subject.build(Case((2, 3), 3, 5, mask="causal"))
    expected = sdpa(inputs.query, inputs.key, inputs.value, is_causal=True)
    assert torch.allclose(subject.output(module, inputs), expected, 1e-4, 1e-5)


class Textbook(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        scores = torch.bmm(queries, keys.mT) / queries.shape[-1] ** 0.5
        return torch.bmm(self.dropout(scores.softmax(-1)), values)


class OfHeads(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.scale = dim**-0.5

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert query.dim() == 4
        return (query @ key.mT * self.scale).softmax(-1) @ value


class OfConfig(nn.Module):
    def __init__(self, config: Any) -> None:
        super().__init__()


def test_a_class_is_made_with_the_sizes_that_it_asks_for() -> None:
    found = probe(Textbook)
    assert found.options == "--as textbook"
    assert (found.answers["layout"].value, found.answers["scale"].value) == (
        "(B, L, E)",
        "1/sqrt(E)",
    )
    assert probe(nn.MultiheadAttention).options == "--as multihead"
    assert "SPEC = probe(OfHeads(dim=8)).spec" in probe(OfHeads).proposal
    with pytest.raises(StyleError, match="constructor asks for 'config'"):
        probe(OfConfig)


def attend(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, scale: float | None = None
) -> Tensor:
    return sdpa(query, key, value, attn_mask=attn_mask, scale=scale)


def keys_first(k: Tensor, q: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    return attend(q, k, v, None if mask is None else mask != 0)


def asks_for_a_bias(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return attend(query, key, value, torch.zeros(()) + mask)


def asks_for_a_hiding_mask(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    return attend(query, key, value, ~mask)


def asks_for_a_scale(query: Tensor, key: Tensor, value: Tensor, sm_scale: float) -> Tensor:
    return attend(query, key, value, scale=sm_scale)


def causal_by_default(q: Tensor, k: Tensor, v: Tensor, causal: bool = True) -> Tensor:
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        hidden = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        scores[..., hidden] = -math.inf
    return scores.softmax(-1) @ v


@pytest.mark.parametrize(
    ("function", "question", "status", "value"),
    [
        (keys_first, "boolean", "inferred", "True = may attend"),
        (asks_for_a_bias, "floating", "inferred", "added to the scores"),
        (asks_for_a_hiding_mask, "boolean", "inferred", "True = hides"),
        (asks_for_a_scale, "takes_scale", "inferred", "replaces the scale"),
        (asks_for_a_scale, "scale", "not taken", None),
        (causal_by_default, "causal", "inferred", "square"),
    ],
)
def test_what_each_call_needs_is_given(
    function: Any, question: str, status: str, value: str | None
) -> None:
    found = probe(function)
    assert found.answers["layout"].value == "(B, H, L, E)"
    assert (found.answers[question].status, found.answers[question].value) == (status, value)


def test_arguments_in_another_order_are_named_in_the_call() -> None:
    found = probe(keys_first)
    assert found.call == "f(k=key, q=query, v=value, mask=attn_mask)"
    module = found.spec.make(8, 8, 8)
    query, key, value = torch.randn(2, 3, 8), torch.randn(2, 5, 8), torch.randn(2, 5, 8)
    assert torch.allclose(module(query, key, value), sdpa(query, key, value))
    assert found.spec.name == "keys_first"
    assert probe(causal_by_default).options is None


def test_rows_without_keys_are_found_by_causality_if_no_mask_is_taken() -> None:
    def bottom_right(query: Tensor, key: Tensor, value: Tensor, is_causal: bool = False) -> Tensor:
        seen = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool)
        if is_causal:
            seen = seen.tril(key.shape[-2] - query.shape[-2])
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        return scores.masked_fill(~seen, -math.inf).softmax(-1) @ value

    assert probe(bottom_right).answers["empty_rows"].value == "nan"
    assert "--convention empty_rows=nan" in str(probe(bottom_right).options)


def test_dropout_is_found_in_a_function_that_computes_in_half_types() -> None:
    def in_half(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        scores = query.half() @ key.half().mT / math.sqrt(query.shape[-1])
        scores = nn.functional.dropout(scores, dropout_p)
        return (scores.softmax(-1) @ value.half()).to(query.dtype)

    def rescales(query: Tensor, key: Tensor, value: Tensor, dropout_p: float = 0.0) -> Tensor:
        return sdpa(query, key, value) / (1 - dropout_p)

    assert probe(in_half).answers["dropout"].value == "on scores"
    assert probe(in_half).answers["extra_keys"].value == 0
    assert probe(rescales).answers["dropout"].status == "ambiguous"


def test_dropout_that_is_given_as_a_module_is_found_and_not_passed_as_a_number() -> None:
    def attention(query: Tensor, key: Tensor, value: Tensor, dropout: Any = None) -> Tensor:
        weights = (query @ key.mT / math.sqrt(query.shape[-1])).softmax(-1)
        return (weights if dropout is None else dropout(weights)) @ value

    found = probe(attention)
    assert found.answers["dropout"].value == "on weights, rescaled, by a module"
    assert found.call == "f(query=query, key=key, value=value)"


def test_keys_that_it_adds_are_counted() -> None:
    for options, extra in (({}, 0), ({"add_zero_attn": True}, 1), ({"add_bias_kv": True}, 1)):
        made = nn.MultiheadAttention(8, 2, batch_first=True, **options)
        assert probe(multihead(made)).answers["extra_keys"].value == extra


def test_a_call_that_refuses_gradients_gives_none() -> None:
    def forward_only(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if query.requires_grad:
            raise RuntimeError("no backward")
        return sdpa(query, key, value)

    assert probe(forward_only).conventions["gradients"] is False


def test_a_boolean_mask_that_hides_nothing_is_no_mask() -> None:
    def adds(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return (scores if attn_mask is None else scores + attn_mask).softmax(-1) @ value

    assert probe(adds).conventions["masks"] == ("floating",)


def test_nan_on_one_of_two_paths_leaves_an_empty_row_without_a_promise() -> None:
    assert probe(two_paths).conventions["empty_rows"] == "nan"


def test_a_bias_of_zeros_passes_for_no_row_of_zeros() -> None:
    made = nn.MultiheadAttention(8, 2, batch_first=True, add_zero_attn=True)
    assert probe(multihead(made)).conventions["empty_rows"] == "nan"


def adds_in_float32(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
    scores = (query * query.shape[-1] ** -0.5) @ key.mT
    scores = scores if attn_mask is None else scores + attn_mask.float()
    return scores.softmax(-1) @ value


def test_a_mask_of_the_lowest_number_is_proposed_where_minus_infinity_makes_nan() -> None:
    found = probe(adds_in_float32)
    low = torch.finfo(torch.float32).min
    assert (found.conventions["mask_value"], found.conventions["empty_rows"]) == (low, "mean")
    assert "-inf makes it nan" in found.answers["empty_rows"].shown


def test_dtypes_that_raise_with_a_mask_are_left_out() -> None:
    assert probe(make(fill=-1e9)).options.endswith(
        "--dtype float32 --dtype float64 --dtype bfloat16"
    )
    assert probe(adds_in_float32).spec.dtypes == ("float32", "float64")


def test_the_log_sum_of_a_row_without_keys_is_found() -> None:
    assert probe(make(fill=-1e9)).conventions["lse_empty"] == pytest.approx(-1e9)
    assert probe(make(base="2")).conventions["lse_base"] == "2"


_SOME = (
    *("agrees_with_scalar_reference", "mask_forms_agree", "decode_equals_prefill"),
    *("empty_rows_give_zeros", "grouped_heads_equal_expanded_heads", "masking_equals_deleting"),
    *("window_leaves_the_keys_around", "softcap_bounds_scores", "gradients_are_right"),
    *("weights_are_those_before_dropout", "training_equals_evaluation"),
)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"layout": "blhe", "corner": "tl", "empty": "mean"},
        {"polarity": False, "empty": "nan", "fill": -1e4},
        {"stride": True, "win": "one", "cap": "after", "drop": "scores"},
        {"corner": "always", "empty": "refused", "wafter": True, "inner": torch.float32},
    ],
    ids=lambda options: "-".join(options) or "usual",
)
def test_the_options_that_are_shown_pass_the_checks(options: Any, monkeypatch: Any) -> None:
    function = make(**options)
    monkeypatch.setattr(sys.modules[__name__], "SHOWN", function, raising=False)
    words = shlex.split(probe(function).options or "")
    given: dict[str, list[str]] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        given.setdefault(option, []).append(value)
    (style,), (call,) = given["--as"], given.get("--call", ["f"])
    address = f"{__name__}:SHOWN as {style}{call[1:]} with {', '.join(given['--convention'])}"
    dtypes = given.get("--dtype")
    report = attnbench.check(address, profile="quick", dtypes=dtypes, invariants=_SOME)
    assert report.ok, str(report)


def test_a_function_that_needs_a_mask_in_float64_is_probed() -> None:
    def attend(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        if attn_mask is None and query.dtype == torch.float64:
            raise ValueError("give a mask")
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(
                ~attn_mask, -1e300 if query.dtype == torch.float64 else -1e30
            )
        return scores.softmax(-1) @ value

    assert probe(attend).answers["empty_rows"].value == "mean"


def ends(output: Tensor) -> Any:
    sys.exit(3)


@pytest.mark.parametrize(
    "form",
    [
        *(lambda output: 3.0, lambda output: (), Tensor.tolist, Tensor.long, Tensor.to_sparse),
        *(lambda output: output.to("meta"), lambda output: torch.complex(output, output), ends),
        lambda output: torch.nested.nested_tensor(list(output)),
    ],
)
def test_a_call_without_an_output_is_no_error_of_the_tool(form: Any) -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Any:
        return form(sdpa(query, key, value, attn_mask))

    assert probe(attend).answers["layout"].status == "ambiguous"
    assert "hidden_slots" not in adapters.sdpa(attend).conventions


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_function_of_a_half_type_alone_is_probed_in_it(dtype: torch.dtype) -> None:
    def attend(
        query: Tensor, key: Tensor, value: Tensor, mask: Any = None, causal: bool = False
    ) -> Tensor:
        if query.dtype != dtype:
            raise RuntimeError(f"only {dtype}")
        query, key, value = (t.transpose(1, 2).float() for t in (query, key, value))
        scores = query @ key.mT * 0.5
        if mask is not None:
            scores = scores.masked_fill(mask, -1e4)
        if causal:
            scores += torch.full(scores.shape[-2:], -math.inf).triu(1)
        return (scores.softmax(-1) @ value).to(dtype).transpose(1, 2)

    found = probe(attend)
    values = {name: answer.value for name, answer in found.answers.items()}
    name = str(dtype).removeprefix("torch.")
    assert values["dtypes"] == (name,)
    assert (values["layout"], values["boolean"]) == ("(B, L, H, E)", "True = hides")
    assert (values["causal"], values["scale"]) == ("top_left", "0.5 at E=4, 0.5 at E=16")
    assert values["empty_rows"] == "mean"
    assert math.isclose(values["mask_value"], -1e4, rel_tol=0.02)
    assert found.answers["internal_dtype"].status == "ambiguous"
    assert "SPEC = probe(attend).spec" in found.proposal
    assert found.spec.dtypes == (name,)


def test_a_result_that_begins_with_the_weights_is_shown() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        weights = (query @ key.mT).softmax(-1)
        return weights, weights @ value

    found = probe(attend)
    assert "it returns (2, 4, 3, 5), (2, 4, 3, 8), and not (2, 4, 3, 8) first" in found.proposal
    assert found.proposal.endswith("that returns the output.")


def test_an_output_of_another_dtype_than_the_query_is_probed() -> None:
    def attend(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return sdpa(query, key, value, attn_mask).half()

    answers = probe(attend).answers
    assert answers["floating"].value == "added to the scores"
    assert answers["dtypes"].value == ("float16",)


def test_rows_that_masks_and_causality_leave_unlike_are_ambiguous() -> None:
    def attend_either(
        q: Tensor, k: Tensor, v: Tensor, mask: Any = None, causal: Any = False
    ) -> Any:
        seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
        low = -1e9 if mask is not None else -math.inf
        seen = mask if mask is not None else seen
        if causal:
            seen = seen.tril(k.shape[-2] - q.shape[-2])
        weights = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, low).softmax(-1)
        return weights.nan_to_num(0.0) @ v

    found = probe(attend_either).answers["empty_rows"]
    assert (found.status, found.shown) == (
        "ambiguous",
        "a row without keys is mean, and zeros by a mask or by causality",
    )


def test_a_window_whose_right_edge_takes_minus_one_for_a_limit_is_told() -> None:
    def windowed(q: Tensor, k: Tensor, v: Tensor, window_size: tuple[int, int]) -> Tensor:
        ahead = torch.arange(k.shape[-2]) - torch.arange(q.shape[-2])[:, None]
        ahead = ahead - (k.shape[-2] - q.shape[-2])
        before, after = window_size
        hidden = (ahead > after) | ((ahead < -before) & (before >= 0))
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -math.inf)
        return scores.softmax(-1).nan_to_num(0.0) @ v

    def with_default(q: Tensor, k: Tensor, v: Tensor, window_size: Any = (-1, 99)) -> Tensor:
        return windowed(q, k, v, window_size)

    assert probe(with_default).answers["window"].value.endswith(", -1 is a limit")
