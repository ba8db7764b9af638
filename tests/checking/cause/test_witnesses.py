"""Mistakes that explain what a subject gets wrong."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from attnbench_zoo.mutants import MUTANTS
from attnbench_zoo.twins.attention import ATTENTION
from attnbench_zoo.twins.options import OPTIONS
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench.adapters import flash, multihead, sdpa, textbook
from attnbench.checking.cause.witnesses import explanations, likeliest
from attnbench.checking.known_causes import mistake_of
from attnbench.subject.lookup import resolve

BY_NAME = {mutant.name: mutant for mutant in MUTANTS}


@pytest.mark.parametrize(
    ("mutant", "mistake"),
    [
        ("polarity_inverted", "mask_inverted"),
        ("mask_never_applied", "all_masks_ignored"),
        ("causal_top_left", "causality_top_left"),
        ("length_one_too_long", "length_one_too_long"),
        ("empty_row_gives_the_mean", "empty_rows_mean"),
        ("scale_missing", "scale_missing"),
        ("grouped_heads_tiled", "groups_tiled"),
        ("softmax_over_queries", "softmax_over_the_queries"),
        ("streaming_causal_top_left", "causality_top_left"),
        ("output_not_rescaled", "block_sums_not_rescaled_16"),
    ],
)
def test_a_known_mistake_is_named_by_what_it_makes(mutant: str, mistake: str) -> None:
    (subject,) = resolve(BY_NAME[mutant].spec)
    assert explanations(subject)[:1] == (mistake,)


@pytest.mark.parametrize("spec", [ATTENTION.spec, OPTIONS.spec, "scaled_dot", "additive"])
def test_a_right_implementation_is_explained_by_nothing(spec: Any) -> None:
    (subject,) = resolve(spec)
    assert explanations(subject) == ()


def merged(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The first half of the keys has its log-sum in base 2."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    parts = scores.tensor_split([key.shape[-2] // 2], -1)
    sums = torch.cat([part.logsumexp(-1, keepdim=True) for part in parts], -1)
    shares = (sums / sums.new_tensor([0.6931471805599453, 1.0])).softmax(-1).split(1, -1)
    weights = [
        share * part.softmax(-1).nan_to_num() for share, part in zip(shares, parts, strict=True)
    ]
    return torch.cat(weights, -1) @ value


def unscaled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Dot products without a scale, which may be meant."""
    return (query @ key.mT).softmax(-1) @ value


def test_without_a_reference_only_what_nobody_means_explains_outputs() -> None:
    specs = [sdpa(f, name=f.__name__, reference=None, exempt={}) for f in (merged, unscaled)]
    found = [explanations(resolve(spec)[0]) for spec in specs]
    assert found == [("parts_merged_in_another_base",), ()]


def hidden_by_a_number(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """A mask that says True = hidden; rows without keys are as without a mask."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores - 1e4 * attn_mask.to(scores)
    return scores.softmax(-1) @ value


def test_an_inverted_mask_is_named_also_where_a_number_hides() -> None:
    (subject,) = resolve(sdpa(hidden_by_a_number, name="hidden_by_a_number"))
    assert explanations(subject)[:1] == ("mask_inverted",)


def test_what_would_make_right_outputs_wrong_comes_last() -> None:
    counts = {"one": (3, 2), "other": (3, 0), "rare": (1, 0), "common": (3, 9)}
    assert [*likeliest(4, counts)] == ["other", "one"]


def opposite(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A mask that says True = hidden; rows without keys are NaN, as softmax leaves them."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask.bool(), -torch.inf)
    return scores.softmax(-1) @ value


def test_a_mask_of_the_opposite_meaning_is_told_though_rows_without_keys_are_nan() -> None:
    report = attnbench.check(opposite, style="sdpa", profile="quick")
    first = str(report).splitlines()[1]
    assert first.startswith("opposite: the mask is read with the opposite meaning")


def one_too_much(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Attention of grouped heads, forward only, plus 1."""
    query, key, value = (tensor.transpose(1, 2) for tensor in (q, k, v))
    output = scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, enable_gqa=True
    )
    return 1 + output.transpose(1, 2)


def test_wrong_outputs_of_grouped_heads_are_looked_into() -> None:
    conventions = {"gradients": False, "hidden_slots": "finite", "masks": ("boolean",)}
    (subject,) = resolve(flash(one_too_much, dtypes=("float32",), conventions=conventions))
    assert explanations(subject) == ()


class TwoMasks(torch.nn.Module):
    """Heads of its own, a mask that ``taken`` reads, and padding that ``laid`` lays.

    ``join`` joins the two.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        join: Any = torch.logical_or,
        axis: int = -1,
        laid: Any = torch.clone,
        taken: Any = torch.clone,
    ) -> None:
        super().__init__()
        self.query, self.key = (torch.nn.Linear(embed_dim, embed_dim) for _ in range(2))
        self.num_heads, self.join, self.axis, self.laid = num_heads, join, axis, laid
        self.batch_first, self.taken = True, taken

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        need_weights: bool = True,
    ) -> tuple[Tensor, Tensor]:
        hidden = torch.zeros(1, 1, 1, dtype=torch.bool)
        if attn_mask is not None:
            each = attn_mask[:: self.num_heads]  # of the first head
            hidden = self.taken(each if attn_mask.dim() == 3 else attn_mask[None])
        if key_padding_mask is not None:
            beside = self.laid(key_padding_mask)[:, None]
            hidden = beside if attn_mask is None else self.join(hidden, beside)
        scores = self.query(query) @ self.key(key).mT
        weights = scores.masked_fill(hidden, -torch.inf).softmax(self.axis)
        return weights @ value, weights


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        ({"join": torch.logical_and}, "mask_counts_where_lengths_hide_too"),
        ({"join": lambda mask, padding: mask}, "lengths_lost_beside_a_mask"),
        ({"join": lambda mask, padding: padding}, "mask_lost_beside_lengths"),
        ({"taken": torch.zeros_like}, "mask_ignored"),
        ({"taken": torch.logical_not}, "mask_inverted"),
        ({"axis": -2}, "softmax_over_the_queries"),
        ({"axis": 0}, "softmax_over_dimension_0"),
        ({"laid": lambda padding: padding.roll(1, 0)}, "lengths_laid_of_another_item"),
        ({"laid": lambda padding: padding & padding.roll(1, 1)}, "length_one_too_long"),
        ({"laid": lambda padding: padding | padding.roll(-1, 1)}, "length_one_too_short"),
        ({}, None),
    ],
)
def test_masks_joined_wrongly_and_other_axes_show_by_themselves(
    options: dict[str, Any], mistake: str | None
) -> None:
    make = functools.partial(TwoMasks, **options)
    forms = ("lengths",) if "laid" in options else ("boolean", "lengths")
    conventions = {"masks": forms}
    (subject,) = resolve(multihead(make, name="two_masks", conventions=conventions))
    assert subject.accepts == ("return_weights", "valid_lens")
    assert explanations(subject) == (() if mistake is None else (mistake,))
    if options in ({}, {"join": torch.logical_and}):
        names = ["causal_and_padding_combine"]
        report = attnbench.check(subject.spec, profile="quick", invariants=names)
        assert report.ok == (mistake is None), str(report)


class Standardised(torch.nn.Module):
    """Dot products with one side standardised over its slots instead of its features."""

    def __init__(self, axis: int, side: str) -> None:
        super().__init__()
        self.axis, self.side = axis, side

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        given = {"query": query, "key": key}
        own = given[self.side]
        given[self.side] = own * (own.square().mean(self.axis, keepdim=True) + 1e-6).rsqrt()
        scores: Tensor = given["query"] @ given["key"].mT
        return scores


@pytest.mark.parametrize(
    ("axis", "side", "found"),
    [
        (-2, "key", ("scores_of_other_keys",)),
        (-2, "query", ("scores_of_other_queries",)),
        (-1, "key", ()),
    ],
)
def test_scores_that_other_slots_change_show_by_themselves(
    axis: int, side: str, found: tuple[str, ...]
) -> None:
    spec = attnbench.ScoringSpec(
        name="standardised", make=lambda q, k: Standardised(axis, side), equal_sizes=True
    )
    (subject,) = resolve(spec)
    assert explanations(subject) == found


class Reshaped(torch.nn.Module):
    """Heads that are cut out by a reshape alone, so that each has features of several slots."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        def halves(tensor: Tensor) -> Tensor:
            length, size = tensor.shape[-2:]
            return tensor.reshape(*tensor.shape[:-2], 2, length, size // 2)

        return (halves(query) @ halves(key).mT).square().sum(-3)


def test_slots_that_only_their_neighbours_change_are_looked_at() -> None:
    spec = attnbench.ScoringSpec(
        name="reshaped",
        make=lambda q, k: Reshaped(),
        equal_sizes=True,
        sizes=lambda s: s.replace(query_size=s.query_size * 2, key_size=s.key_size * 2),
    )
    (subject,) = resolve(spec)
    assert explanations(subject) == ("scores_of_other_keys",)


def filled_up(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Keys and values in blocks of 16, the last of which is filled up with zeros."""
    rest = (0, 0, 0, -key.shape[-2] % 16)
    key, value = (torch.nn.functional.pad(tensor, rest) for tensor in (key, value))
    return (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1) @ value


def filled_up_unless_masked(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """The same, but right where a mask is given."""
    if attn_mask is None:
        return filled_up(query, key, value)
    return scaled_dot_product_attention(query, key, value, attn_mask)


@pytest.mark.parametrize("function", [filled_up, filled_up_unless_masked])
def test_zeros_that_fill_up_a_block_of_keys_are_named(function: Any) -> None:
    (subject,) = resolve(sdpa(function, name="filled_up"))
    (found, *_) = explanations(subject)
    assert found in ("last_block_filled_up_16", "open_block_filled_up_16")


def capped(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, softcap: float = 0.0
) -> Tensor:
    """Scores of a block of 16 are filled up with minus infinity before the soft cap."""
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    fill = (0, -key.shape[-2] % 16)
    scores = torch.nn.functional.pad(scores, fill, value=-torch.inf)
    scores = softcap * (scores / softcap).tanh() if softcap else scores
    if attn_mask is not None:
        hidden = torch.nn.functional.pad(
            ~attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2]), fill, value=True
        )
        scores = scores.masked_fill(hidden, -torch.inf)
    return scores.softmax(-1).nan_to_num()[..., : key.shape[-2]] @ value


def renormalised(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """The mask follows a softmax over all keys, and another division follows the mask."""
    weights = (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1)
    if attn_mask is not None:
        weights = weights * attn_mask
    return (weights / weights.sum(-1, keepdim=True)).nan_to_num() @ value


def joint(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The softmax of each query runs over heads and keys."""
    scores = (query * query.shape[-1] ** -0.5 @ key.mT).transpose(1, 2)
    weights = scores.flatten(2).softmax(-1).reshape(scores.shape)
    return weights.transpose(1, 2) @ value


def in_blocks(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The features of the value are read in blocks of 16, and the rest is 0."""
    output = scaled_dot_product_attention(query, key, value, attn_mask)
    features = torch.arange(output.shape[-1])
    return output * (features < output.shape[-1] // 16 * 16)


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        (in_blocks, "features_lost"),
        (capped, "open_capped_block_filled_up"),
        (renormalised, "hidden_scores_in_softmax"),
        (joint, "softmax_over_heads_and_keys"),
    ],
)
def test_sums_over_too_much_or_too_little_are_named(function: Any, mistake: str) -> None:
    (subject,) = resolve(sdpa(function, name="summed"))
    assert mistake_of(explanations(subject)[0]) == mistake


class MaskedLate(torch.nn.Module):
    """Weights of a bilinear score, which the mask sets to 0 after the softmax."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()
        self.map = torch.nn.Linear(query_size, key_size)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        weights = (self.map(query) @ key.mT).softmax(-1)
        weights = weights if mask is None else weights * mask
        return weights @ value, weights


def test_a_mask_behind_the_softmax_shows_by_its_weights_alone() -> None:
    (subject,) = resolve(textbook(MaskedLate))
    assert subject.maker.reference is None
    assert explanations(subject) == ("mask_after_softmax",)


def textbook_of(**ways: Any) -> Any:
    """Textbook attention, right under the conventions that it is given."""

    def call(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        dtype = ways.get("dtype", query.dtype)
        scores = (query * query.shape[-1] ** -0.5).to(dtype) @ key.mT.to(dtype)
        if is_causal or ways.get("causal") == "always":
            shift = key.shape[-2] - query.shape[-2] if ways.get("causal") == "always" else 0
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(shift)
            scores = scores.masked_fill(~seen, ways.get("hidden", -torch.inf))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, ways.get("hidden", -torch.inf))
        elif attn_mask is not None:
            scores = scores + attn_mask.clamp_min(ways.get("hidden", -torch.inf)).to(dtype)
        return (scores.softmax(-1) @ value.to(dtype)).to(query)

    return call


@pytest.mark.parametrize(
    ("ways", "conventions"),
    [
        ({}, {"empty_rows": "nan"}),
        ({"hidden": -1e38}, {"empty_rows": "mean", "dtypes": ("float32",)}),
        ({"hidden": -1e4}, {"empty_rows": "nan", "mask_value": -1e4}),
        ({}, {"empty_rows": "refused"}),
        ({"causal": "top_left"}, {"empty_rows": "nan", "causal": "top_left"}),
        ({"causal": "always"}, {"empty_rows": "nan", "causal": "always"}),
        ({"dtype": torch.float32}, {"empty_rows": "nan", "internal_dtype": "float32"}),
        ({"dtype": torch.bfloat16}, {"empty_rows": "nan", "internal_dtype": "bfloat16"}),
    ],
    ids=lambda given: "-".join(map(str, given.values())) or "plain",
)
def test_what_the_conventions_allow_explains_nothing(ways: Any, conventions: Any) -> None:
    dtypes = conventions.pop("dtypes", ("float32", "float64"))
    spec = sdpa(textbook_of(**ways), name="mine", dtypes=dtypes, conventions=conventions)
    (subject,) = resolve(spec)
    assert explanations(subject) == ()


def top_left(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """Causality ends at the wrong corner, and large scores overflow in float16."""
    scores = query @ key.mT / query.shape[-1] ** 0.5
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


TOP_LEFT = "causality is aligned to the top left, and should be to the bottom right"


@pytest.mark.parametrize(
    ("invariant", "told"),
    [
        ("weights_sum_to_one", "half precision overflows, or loses more than it has to"),
        pytest.param("causal_and_padding_combine", TOP_LEFT, marks=pytest.mark.long),
        ("masking_equals_deleting", TOP_LEFT),
    ],
)
def test_a_cause_stands_over_a_failure_that_it_explains(invariant: str, told: str) -> None:
    spec = sdpa(top_left, name="mine", conventions={"causal": "bottom_right"})
    report = attnbench.check(spec, profile="quick", invariants=[invariant])
    (failure,) = [o for o in report.outcomes if o.failure is not None]
    assert failure.diagnosis == told


def scores_of(query: Tensor, key: Tensor, attn_mask: Tensor | None) -> Tensor:
    scores = query * query.shape[-1] ** -0.5 @ key.mT
    return scores if attn_mask is None else scores.masked_fill(~attn_mask, -torch.inf)


def divided_by_block(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Blocks of 32 keys; what was pooled so far is divided by its sum in each of them."""
    pooled, last = torch.zeros(()), torch.tensor(-torch.inf)
    for scores, values in zip(
        torch.split(scores_of(query, key, None), 32, -1), torch.split(value, 32, -2), strict=True
    ):
        top = torch.maximum(last, scores.amax(-1, keepdim=True))
        rest, powers = (last - top).exp(), (scores - top).exp()
        pooled = (pooled * rest + powers @ values) / (rest + powers.sum(-1, keepdim=True))
        last = top
    return pooled


def lost_with_a_part(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Three parts of the keys merged by their log-sums, -inf where a mask hides one."""
    parts = scores_of(query, key, attn_mask).chunk(3, -1)
    sums = torch.cat([part.logsumexp(-1, keepdim=True) for part in parts], -1)
    shares = sums.softmax(-1).split(1, -1)
    weights = [share * part.softmax(-1) for share, part in zip(shares, parts, strict=True)]
    return torch.cat(weights, -1) @ value


def turned(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The output lies as (B, L, H, E) and is read as (B, H, L, E)."""
    output = scaled_dot_product_attention(query, key, value, attn_mask)
    return output.transpose(1, 2).reshape(output.shape)


def sampled(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """Blocks of the mask are skipped whose first slot is hidden."""
    if attn_mask is not None:
        q_len, kv_len = query.shape[-2], key.shape[-2]
        attn_mask = attn_mask.expand(*attn_mask.shape[:-2], q_len, kv_len)
        first = attn_mask[..., ::4, ::4].repeat_interleave(4, -1).repeat_interleave(4, -2)
        attn_mask = attn_mask & first[..., :q_len, :kv_len]
    return scaled_dot_product_attention(query, key, value, attn_mask)


class ViewedHeads(torch.nn.Module):
    """Two heads of its own, which a view merges where they lie before the queries."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        heads = [t.unflatten(-1, (2, -1)).transpose(-2, -3) for t in (query, key, value)]
        output = scaled_dot_product_attention(*heads)
        return output.contiguous().view(*value.shape[:-2], query.shape[-2], value.shape[-1])


def test_heads_of_a_mechanism_that_are_merged_by_a_view_mix_queries() -> None:
    def even(sizes: Any) -> Any:
        return sizes.replace(query_size=8, key_size=8, value_size=8)

    spec = attnbench.MechanismSpec(
        name="viewed", make=lambda *sizes: ViewedHeads(), sizes=even, conventions={"masks": ()}
    )
    (subject,) = resolve(spec)
    assert explanations(subject) == ("queries_read_together",)


def unnormalised(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """Linear attention: the weights are the dot products, and 0 where a mask hides a key."""
    weights = (query * query.shape[-1] ** -0.5) @ key.mT
    return (weights if attn_mask is None else weights * attn_mask) @ value


def test_a_mask_is_not_after_a_softmax_that_is_not_there() -> None:
    forms = {"masks": ("boolean", "lengths")}
    (subject,) = resolve(sdpa(unnormalised, laws=("pools_values",), conventions=forms))
    assert explanations(subject) == ()


def square_alone(
    q: Tensor, k: Tensor, v: Tensor, causal: bool = False, softmax_scale: float | None = None
) -> Tensor:
    """Causality counts only where there are as many queries as keys."""
    query, key, value = (t.transpose(1, 2) for t in (q, k, v))
    square = causal and q.shape[1] == k.shape[1]
    output = scaled_dot_product_attention(query, key, value, is_causal=square, scale=softmax_scale)
    return output.transpose(1, 2)


def test_causality_that_is_lost_where_the_lengths_differ_is_no_mask_that_is() -> None:
    (subject,) = resolve(flash(square_alone))
    assert explanations(subject)[:1] == ("causality_ignored",)


def as_boolean(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
) -> Tensor:
    """A floating mask hides the keys at which it is below 0, however little."""
    if attn_mask is not None and attn_mask.dtype != torch.bool:
        attn_mask = attn_mask >= 0
    return scaled_dot_product_attention(query, key, value, attn_mask)


def counted(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """A mask gives the number of keys, which are taken for the first ones."""
    if attn_mask is not None:
        attn_mask = attn_mask.expand(*attn_mask.shape[:-1], key.shape[-2])
        attn_mask = torch.arange(key.shape[-2]) < attn_mask.sum(-1, keepdim=True)
    return scaled_dot_product_attention(query, key, value, attn_mask)


def chosen(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None) -> Tensor:
    """The two largest scores are chosen before the mask hides some of them."""
    scores = scores_of(query, key, None)
    few = scores < scores.topk(min(2, scores.shape[-1]), -1).values[..., -1:]
    hidden = few if attn_mask is None else few | ~attn_mask.bool()
    return scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0) @ value


def divided_by_other_sums(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = scores_of(query, key, None)
    raw = (scores - scores.amax(-1, keepdim=True)).exp()
    is_square = raw.shape[-1] == raw.shape[-2]
    return raw / raw.sum(-1).unsqueeze(-2 if is_square else -1) @ value


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        (chosen, "hidden_key_read"),
        (as_boolean, "bias_read_as_boolean"),
        (counted, "mask_read_as_length"),
        (sampled, "mask_read_by_block_4"),
        (divided_by_block, "block_sums_not_rescaled_32"),
        (lost_with_a_part, "row_lost_with_a_hidden_part_2"),
        (turned, "heads_read_as_queries"),
        (divided_by_other_sums, "sums_of_other_queries"),
    ],
)
def test_parts_and_heads_that_are_put_together_wrongly_are_named(
    function: Any, mistake: str
) -> None:
    exempt = {"every_attendable_key_matters": "one of them chooses its keys"}
    (subject,) = resolve(sdpa(function, name="joined", exempt=exempt))
    assert explanations(subject)[:1] == (mistake,)
