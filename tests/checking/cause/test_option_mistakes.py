"""Mistakes in how options are read, each made by a function of its own."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash, sdpa
from attnbench.cases.case import Case
from attnbench.checking.cause.extent import extent_of
from attnbench.checking.cause.replays import made_at
from attnbench.checking.cause.textbook_call import Call
from attnbench.checking.cause.witnesses import agree, mistaken
from attnbench.checking.known_causes import known_causes, mistake_of
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.oracle.textbook import stages_of
from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import Inputs

MARGIN = 1e-9
Change = Callable[..., Any]


def ahead(query: Tensor, key: Tensor) -> Tensor:
    """How far each key lies beyond each query, of which the last stands at the last key."""
    q_len, kv_len = query.shape[-2], key.shape[-2]
    return torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    slopes: Tensor | None = None,
    seen: Tensor | None = None,
    cap: Change = lambda s, c: c * (s / c).tanh(),
    bias: Change = lambda m, d: -m * d.abs(),
    total: Change = lambda sums, top, sink: sums + (sink - top).exp(),
    before_cap: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    """Attention in plain operations, with places where a mistake can be put in."""
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    lowered = 0.0 if slopes is None else bias(slopes[:, None, None], ahead(query, key))
    scores = scores + lowered if before_cap else scores
    scores = scores if softcap is None else cap(scores, softcap)
    scores = scores if before_cap else scores + lowered
    scores = scores if mask is None else scores + mask
    scores = scores if seen is None else scores.masked_fill(~seen, -math.inf)
    top = scores.amax(-1, keepdim=True)
    powers = (scores - top).exp()
    sums = powers.sum(-1, keepdim=True)
    sums = sums if sinks is None else total(sums, top, sinks[:, None, None])
    return powers / sums @ value


def drawn(*lead: int) -> Inputs:
    generator = torch.Generator().manual_seed(0)
    sizes = ((4, 8), (7, 8), (7, 5))
    return Inputs(
        *(torch.randn(*lead, *size, generator=generator, dtype=torch.float64) for size in sizes)
    )


def named(given: Inputs, output: Tensor) -> set[str]:
    """The mistakes that give an output, which is wrong."""
    call = Call(given, stages_of(given), scaled=True)
    right = call.stages.output
    assert not agree(output, right, MARGIN)
    return {
        name
        for name, other in mistaken(call)
        if agree(other, output, MARGIN) and not agree(other, right, MARGIN)
    }


ROOT = math.sqrt(8)


@pytest.mark.parametrize(
    ("mistake", "cap"),
    [
        ("softcap_ignored", lambda s, c: s),
        ("softcap_not_multiplied", lambda s, c: (s / c).tanh()),
        ("softcap_of_the_score_itself", lambda s, c: s * (s / c).tanh()),
        ("softcap_not_divided", lambda s, c: c * s.tanh()),
        ("softcap_clips", lambda s, c: s.clamp(-c, c)),
        ("softcap_twice", lambda s, c: c * (s / c).tanh().tanh()),
        ("softcap_before_the_scale", lambda s, c: c * (s * ROOT / c).tanh() / ROOT),
        ("softcap_in_place_of_the_scale", lambda s, c: c * (s * ROOT / c).tanh()),
    ],
)
def test_a_softcap_of_another_form_is_named(mistake: str, cap: Change) -> None:
    given = drawn(2, 3).replace(softcap=0.7)
    plain = given.query, given.key, given.value
    assert agree(attend(*plain, softcap=0.7), stages_of(given).output, MARGIN)
    assert named(given, attend(*plain, softcap=0.7, cap=cap)) == {mistake}


SINKS = torch.tensor([0.3, -1.2, 2.0], dtype=torch.float64)


@pytest.mark.parametrize(
    ("mistake", "total"),
    [
        ("sinks_ignored", lambda sums, top, sink: sums),
        ("sinks_scaled", lambda sums, top, sink: sums + (sink / ROOT - top).exp()),
        ("sinks_subtracted", lambda sums, top, sink: sums + (-sink - top).exp()),
        ("sinks_of_other_heads", lambda sums, top, sink: sums + (sink.flip(0) - top).exp()),
        ("sinks_of_the_first_head", lambda sums, top, sink: sums + (sink[:1] - top).exp()),
        ("sinks_of_base_two", lambda sums, top, sink: sums + 2**sink * (-top).exp()),
        ("sinks_counted_by_block_4", lambda sums, top, sink: sums + 2 * (sink - top).exp()),
        ("sinks_not_shifted", lambda sums, top, sink: sums + sink.exp()),
        ("sinks_added_to_the_sum", lambda sums, top, sink: sums + sink),
    ],
)
def test_sinks_that_weigh_otherwise_are_named(mistake: str, total: Change) -> None:
    given = drawn(2, 3).replace(sinks=SINKS)
    plain = given.query, given.key, given.value
    assert agree(attend(*plain, sinks=SINKS), stages_of(given).output, MARGIN)
    found = named(given, attend(*plain, sinks=SINKS, total=total))
    assert found - {"sinks_counted_times_2"} == {mistake}  # of two blocks


SLOPES = torch.tensor([0.5, 0.2, 0.9], dtype=torch.float64)
PLACES = torch.arange(7)


@pytest.mark.parametrize(
    ("mistake", "bias"),
    [
        ("alibi_slopes_ignored", lambda m, d: m * 0),
        ("alibi_slopes_added", lambda m, d: m * d.abs()),
        ("alibi_slopes_scaled", lambda m, d: -m * d.abs() / ROOT),
        ("alibi_slopes_of_base_two", lambda m, d: -m * d.abs() * math.log(2.0)),
        ("alibi_slopes_from_the_top_left", lambda m, d: -m * (d + 3).abs()),
        ("alibi_slopes_of_other_heads", lambda m, d: -m.flip(0) * d.abs()),
        ("alibi_slopes_of_the_first_head", lambda m, d: -m[:1] * d.abs()),
        ("alibi_slopes_signed", lambda m, d: m * d),
        ("alibi_slopes_signed", lambda m, d: m * PLACES),
        ("alibi_slopes_by_squares", lambda m, d: -m * d * d),
    ],
)
def test_slopes_that_are_applied_otherwise_are_named(mistake: str, bias: Change) -> None:
    given = drawn(2, 3).replace(alibi_slopes=SLOPES)
    plain = given.query, given.key, given.value
    assert agree(attend(*plain, slopes=SLOPES), stages_of(given).output, MARGIN)
    assert named(given, attend(*plain, slopes=SLOPES, bias=bias)) == {mistake}


def test_slopes_and_a_softcap_in_the_other_order_are_named() -> None:
    given = drawn(2, 3).replace(alibi_slopes=SLOPES, softcap=0.7)
    plain = given.query, given.key, given.value
    output = attend(*plain, slopes=SLOPES, softcap=0.7, before_cap=True)
    assert named(given, output) == {"softcap_after_the_bias"}
    mask = torch.linspace(-1.0, 1.0, 28, dtype=torch.float64).reshape(4, 7)
    given = given.replace(attn_mask=mask)
    output = attend(*plain, slopes=SLOPES, softcap=0.7, before_cap=True, mask=mask)
    assert named(given, output) == {"alibi_slopes_within_softcap"}


@pytest.mark.parametrize(
    ("mistake", "edges", "shift"),
    [
        ("window_size_one_off", (2, 1), 0),
        ("window_size_exchanged", (1, 2), 0),
        ("window_size_lost_behind", (9, 1), 0),
        ("window_size_lost_ahead", (2, 9), 0),
        ("window_size_from_the_top_left", (2, 1), 3),
    ],
)
def test_a_window_that_lies_elsewhere_is_named(
    mistake: str, edges: tuple[int, int], shift: int
) -> None:
    window = (1, 1) if mistake == "window_size_one_off" else (2, 1)
    given = drawn(2, 3).replace(window_size=window)
    plain = given.query, given.key, given.value
    far = ahead(given.query, given.key) + shift
    seen = (far >= -edges[0]) & (far <= edges[1])
    assert named(given, attend(*plain, seen=seen)) == {mistake}


@pytest.mark.parametrize(("behind", "ahead_too"), [(3, 0), (0, 3)])
def test_a_window_of_which_one_edge_is_counted_from_the_top_left_is_named(
    behind: int, ahead_too: int
) -> None:
    given = drawn(2, 3).replace(window_size=(2, 1))
    far = ahead(given.query, given.key)
    seen = (far + behind >= -2) & (far + ahead_too <= 1)
    output = attend(given.query, given.key, given.value, seen=seen)
    assert named(given, output) == {"window_size_from_the_top_left"}


def test_a_limit_of_minus_one_that_is_counted_is_named() -> None:
    given = drawn(2, 3).replace(window_size=(3, -1))
    far = ahead(given.query, given.key)
    output = attend(given.query, given.key, given.value, seen=(far >= -3) & (far <= -1))
    assert named(given, output) == {"window_size_takes_no_limit_as_a_number"}


@pytest.mark.parametrize(
    ("mistake", "key", "value"),
    [
        ("k_scale_ignored", lambda k, v: k * 0 + 1, lambda k, v: v),
        ("v_scale_ignored", lambda k, v: k, lambda k, v: v * 0 + 1),
        ("stored_scales_ignored", lambda k, v: k * 0 + 1, lambda k, v: v * 0 + 1),
        ("stored_scales_exchanged", lambda k, v: v, lambda k, v: k),
        ("k_scale_is_that_of_values", lambda k, v: v, lambda k, v: v),
        ("v_scale_is_that_of_keys", lambda k, v: k, lambda k, v: k),
        ("k_scale_divides", lambda k, v: 1 / k, lambda k, v: v),
        ("v_scale_twice", lambda k, v: k, lambda k, v: v * v),
        ("v_scale_of_the_first", lambda k, v: k, lambda k, v: v[0, 0]),
        ("v_scale_of_another", lambda k, v: k, lambda k, v: v.roll(1, 0)),
        ("k_scale_of_the_first_head", lambda k, v: k[:, :1], lambda k, v: v),
    ],
)
def test_scales_of_what_is_stored_that_are_read_otherwise_are_named(
    mistake: str, key: Change, value: Change
) -> None:
    k_scale = torch.tensor([[2.0, 0.5, 1.5], [1.0, 3.0, 0.7]], dtype=torch.float64)[..., None, None]
    v_scale = k_scale.flip(0, 1) + 0.25
    given = drawn(2, 3).replace(k_scale=k_scale, v_scale=v_scale)
    query, stored = given.query, (given.key, given.value)
    right = attend(query, stored[0] * k_scale, stored[1] * v_scale)
    assert agree(right, stages_of(given).output, MARGIN)
    output = attend(query, stored[0] * key(k_scale, v_scale), stored[1] * value(k_scale, v_scale))
    # one number for all keys is lost in the sum too, where it is multiplied to the weights
    alike = {"v_scale_in_the_sum"} if mistake == "v_scale_ignored" else set()
    assert named(given, output) == {mistake, *alike}


@pytest.mark.parametrize(
    ("mistake", "tiled"),
    [
        ("groups_tiled", (True, True)),
        ("groups_tiled_in_keys", (True, False)),
        ("groups_tiled_in_values", (False, True)),
    ],
)
def test_heads_that_are_tiled_in_one_of_two_are_named(
    mistake: str, tiled: tuple[bool, bool]
) -> None:
    given = drawn(2, 2)
    given = given.replace(query=drawn(2, 4).query, enable_gqa=True)
    pairs = zip((given.key, given.value), tiled, strict=True)
    key, value = (
        t.repeat(1, 2, 1, 1) if is_tiled else t.repeat_interleave(2, 1) for t, is_tiled in pairs
    )
    assert named(given, attend(given.query, key, value)) == {mistake}


def test_a_scale_of_values_that_is_summed_too_is_named() -> None:
    given = drawn(2, 3)
    by_token = (
        torch.rand(*given.key.shape[:-1], 1, generator=torch.Generator().manual_seed(0)) + 0.5
    )
    given = given.replace(v_scale=by_token.double())
    bare = stages_of(given.replace(v_scale=None))
    weights = bare.weights * by_token.double().mT
    output = weights / weights.sum(-1, keepdim=True) @ given.value
    assert named(given, output) == {"v_scale_in_the_sum"}


def test_a_scale_of_keys_that_multiplies_a_floating_mask_too_is_named() -> None:
    given, bias = drawn(2, 3), torch.linspace(-1.0, 2.0, 7).double()[None]
    k_scale = torch.tensor([[2.0, 0.5, 1.5], [1.0, 3.0, 0.7]], dtype=torch.float64)[..., None, None]
    given = given.replace(k_scale=k_scale, attn_mask=bias)
    output = attend(given.query, given.key * k_scale, given.value, mask=bias * k_scale)
    assert named(given, output) == {"k_scale_times_the_bias"}


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
def test_a_scale_by_head_that_is_tiled_over_groups_is_named(name: str) -> None:
    scales = {n: torch.tensor([0.5, 3.0]).double()[:, None, None] for n in ("k_scale", "v_scale")}
    given = drawn(2, 2).replace(query=drawn(2, 4).query, enable_gqa=True, **scales)
    laid = {n: s.repeat_interleave(2, 0) for n, s in scales.items()}
    key, value = (t.repeat_interleave(2, 1) for t in (given.key, given.value))

    def output() -> Tensor:
        return attend(given.query, key * laid["k_scale"], value * laid["v_scale"])

    assert agree(output(), stages_of(given).output, MARGIN)
    laid[name] = scales[name].repeat(2, 1, 1)
    assert named(given, output()) == {f"{name}_tiled"}


PREFIXES = ("softcap", "sinks", "alibi", "window", "k_scale", "v_scale", "stored", "groups")


def test_every_mistake_that_a_call_can_show_has_a_cause_and_a_form() -> None:
    given = drawn(2, 4).replace(
        key=drawn(2, 2).key,
        value=drawn(2, 2).value,
        enable_gqa=True,
        softcap=0.7,
        sinks=torch.ones(4),
        alibi_slopes=torch.ones(4),
        window_size=(2, -1),
        is_causal=True,
        k_scale=torch.ones(2, 2, 1, 1),
        v_scale=torch.ones(2, 2, 1, 1),
    )
    names = {mistake_of(name) for name, _ in mistaken(Call(given, stages_of(given), scaled=True))}
    assert len(names) > 60
    assert names <= known_causes()["mistakes"].keys()
    assert {known_causes()["mistakes"][name] for name in names} <= known_causes()["causes"].keys()
    of_options = {name for name in names if name.startswith(PREFIXES)}
    assert of_options <= known_causes()["forms"].keys()


def capped(query: Tensor, key: Tensor, value: Tensor, softcap: float | None = None) -> Tensor:
    """A cap of s·tanh(s / c)."""
    return attend(query, key, value, softcap=softcap, cap=lambda s, c: s * (s / c).tanh())


def windowed(q: Tensor, k: Tensor, v: Tensor, window_size: tuple[int, int] = (-1, -1)) -> Tensor:
    """A window whose -1 is a number, where the other side has a limit."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    far, (before, after) = ahead(q, k), window_size
    seen = (far >= -before) & (far <= after) if window_size != (-1, -1) else None
    hidden = torch.zeros(()) if seen is None else ~seen.any(-1, keepdim=True)
    output = attend(q, k, v, seen=seen if seen is None else seen | hidden.bool())
    return output.masked_fill(hidden.bool(), 0.0).transpose(1, 2)


@pytest.mark.parametrize(
    ("spec", "invariant", "words"),
    [
        (sdpa(capped), "softcap_bounds_scores", "softcap is s·tanh(s / c)"),
        (flash(windowed), "window_leaves_the_keys_around", "-1 in window_size"),
    ],
)
def test_a_report_begins_with_the_mistake(spec: Any, invariant: str, words: str) -> None:
    report = attnbench.check(spec, profile="quick", invariants=[invariant])
    (outcome,) = (o for o in report.outcomes if o.failure is not None)
    assert words in (outcome.diagnosis or "")


def sink_by_part(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """For one query the keys are dealt out to four parts, each of which begins with the sink."""
    if sinks is not None and query.shape[-2] == 1:
        sinks = sinks + math.log(4)
    return attend(query, key, value, sinks=sinks, seen=attn_mask)


def open_window(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Without a mask the window is forgotten."""
    steps = ahead(query, key)
    before, after = (limit if limit >= 0 else 10**6 for limit in window_size)
    inside = (steps >= -before) & (steps <= after)
    seen = None if attn_mask is None else attn_mask & inside
    return scaled_dot_product_attention(query, key, value, seen)


CASE = Case((1, 1), 1, 3, 1, 1, 1).tried(heads="own", beside="nothing", dropout=False)


@pytest.mark.parametrize(
    ("function", "invariant", "case", "mistake", "extent"),
    [
        (
            sink_by_part,
            "sinks_take_weight_alone",
            CASE.tried(kind="usual"),
            "sinks_counted_times_4",
            "where there is one query",
        ),
        (
            open_window,
            "window_leaves_the_keys_around",
            CASE.tried(kind="behind"),
            "window_size_ignored",
            "where there is no mask",
        ),
    ],
)
def test_what_is_wrong_with_an_option_and_where_alone_is_told(
    function: Any, invariant: str, case: Case, mistake: str, extent: str
) -> None:
    (subject,) = resolve(sdpa(function, conventions={"masks": ("boolean",)}))
    (option,) = select_invariants([invariant])
    failure = Failure(case=case.id, smallest=True)
    assert made_at(subject, option, failure) == (mistake,)
    assert extent_of(subject, option, failure) == extent
