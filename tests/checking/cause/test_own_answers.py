"""Mistakes that a subject's own answers show."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import Case
from attnbench.adapters import textbook
from attnbench.checking.cause.own_answers import STATED_BY, own_mistake
from attnbench.checking.cause.replays import explains
from attnbench.checking.cause.score_answers import wrong_axis
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve


class Heads(nn.Module):
    """Two heads of a multi-head attention, split and merged by a view alone where asked."""

    def __init__(self, size: int, split: bool, merge: bool) -> None:
        super().__init__()
        self.out, self.split, self.merge = nn.Linear(size, size), split, merge

    def heads(self, tensor: Tensor) -> Tensor:
        if self.split:
            return tensor.unflatten(-1, (2, -1)).transpose(1, 2)
        return tensor.reshape(tensor.shape[0], 2, -1, tensor.shape[-1] // 2)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Any:
        scores = self.heads(query) @ self.heads(key).mT
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -torch.inf)
        output = scores.softmax(-1) @ self.heads(value)
        if self.split and self.merge:
            output = output.transpose(1, 2)
        return self.out(output.reshape(query.shape))


@pytest.mark.parametrize(
    ("split", "merge", "mistake"),
    [
        (True, True, None),
        (True, False, "queries_read_together"),
        (False, False, "key_not_read_by_all"),
    ],
)
def test_rows_that_are_mixed_without_a_mask_come_before_masks(
    split: bool, merge: bool, mistake: str | None
) -> None:
    class Made(Heads):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__(2 * -(-num_hiddens // 2), split, merge)

    spec = textbook(Made, sizes=lambda sizes: sizes.replace(query_size=8, key_size=8, value_size=8))
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


def test_values_that_are_made_of_the_keys_are_told() -> None:
    class Made(Heads):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__(2 * -(-num_hiddens // 2), split=True, merge=True)

        def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None) -> Any:
            return super().forward(query, key, key, mask)

    spec = textbook(Made, sizes=lambda s: s.replace(query_size=8, key_size=8, value_size=8))
    (subject,) = resolve(spec)
    assert own_mistake(subject) == "values_unread"


def test_a_subject_that_draws_random_numbers_mixes_no_rows() -> None:
    class Random(Heads):
        def __init__(self, num_hiddens: int) -> None:
            super().__init__(2 * -(-num_hiddens // 2), split=True, merge=True)

        def forward(self, *given: Any) -> Any:
            output = super().forward(*given)
            return output + torch.rand(output.shape)

    spec = textbook(Random, sizes=lambda s: s.replace(query_size=8, key_size=8, value_size=8))
    (subject,) = resolve(spec)
    assert own_mistake(subject) not in STATED_BY


class Linear(nn.Module):
    """Attention without a softmax, whose rows are divided by their sums over an axis."""

    def __init__(self, axis: int, epsilon: float) -> None:
        super().__init__()
        self.axis, self.epsilon = axis, epsilon

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        query, key = query.sigmoid(), key.sigmoid()
        sums = (query * key.sum(-2, keepdim=True)).sum(-1, keepdim=True)
        if self.axis == -3 and query.dim() > 3:
            sums = sums.cumsum(-3)
        output: Tensor = query @ (key.mT @ value) / (sums + self.epsilon)
        return output


@pytest.mark.parametrize(
    ("axis", "epsilon", "mistake"),
    [
        (-1, 0.0, None),
        (-1, 1e-6, "sum_with_epsilon"),
        (-3, 0.0, "heads_read_together"),
    ],
)
def test_sums_over_heads_and_sums_with_an_epsilon_show_by_themselves(
    axis: int, epsilon: float, mistake: str | None
) -> None:
    spec = attnbench.MechanismSpec(
        name="linear",
        make=lambda *sizes: Linear(axis, epsilon),
        equal_sizes=True,
        laws=("pools_values",),
        conventions={"masks": ()},
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


def test_positions_that_do_not_count_show_by_the_order_of_keys() -> None:
    def of(positions: str) -> str | None:
        spec = attnbench.MechanismSpec(
            name="linear",
            make=lambda *sizes: Linear(-1, 0.0),
            equal_sizes=True,
            laws=("pools_values",),
            conventions={"masks": (), "positions": positions},
        )
        (subject,) = resolve(spec)
        return own_mistake(subject)

    assert [of(positions) for positions in ("none", "relative")] == [None, "positions_ignored"]


class Turned(nn.Module):
    """Rotary attention, whose rotation has the sign that is given; queries may count from 0."""

    def __init__(self, sign: float, late: bool) -> None:
        super().__init__()
        self.sign, self.late = sign, late

    def turn(self, tensor: Tensor, first: int) -> Tensor:
        one, two = tensor.chunk(2, -1)
        angles = torch.arange(first, first + tensor.shape[-2]).to(tensor)[:, None] / 3
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([one * cos + self.sign * two * sin, two * cos + one * sin], -1)

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        first = key.shape[-2] - query.shape[-2] if self.late else 0
        scores = self.turn(query / query.shape[-1], first) @ self.turn(key, 0).mT
        output: Tensor = scores.softmax(-1) @ value
        return output


@pytest.mark.parametrize(
    ("sign", "late", "mistake"),
    [
        (-1.0, True, None),
        (1.0, True, "scores_not_by_distance"),
        (-1.0, False, None),  # another mistake: the scores are by distance, of another origin
    ],
)
def test_a_rotation_without_its_sign_shows_by_scores_at_one_distance(
    sign: float, late: bool, mistake: str | None
) -> None:
    spec = attnbench.MechanismSpec(
        name="turned",
        make=lambda *sizes: Turned(sign, late),
        equal_sizes=True,
        sizes=lambda s: s.replace(query_size=2 * s.query_size, key_size=2 * s.query_size),
        laws=("pools_values",),
        conventions={"masks": (), "positions": "relative"},
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


class Additive(nn.Module):
    """Additive scores of all pairs in one list; ``order`` tells in which it is built."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if self.order == "summed":
            query = query.cumsum(-2)
        q_len, kv_len = query.shape[-2], key.shape[-2]
        rows = query.repeat_interleave(kv_len, -2)
        if self.order == "tiled":
            rows = query.repeat(*[1] * (query.dim() - 2), kv_len, 1)
        pairs = rows + key.repeat(*[1] * (key.dim() - 2), q_len, 1)
        return pairs.tanh().sum(-1).unflatten(-1, (q_len, kv_len))


@pytest.mark.parametrize(
    ("order", "mistake"),
    [
        ("right", None),
        ("tiled", "scores_at_other_places"),
        ("summed", "scores_of_earlier_queries"),
    ],
)
def test_pairs_in_another_order_and_running_sums_show_by_themselves(
    order: str, mistake: str | None
) -> None:
    spec = attnbench.ScoringSpec(
        name="additive", make=lambda q, k: Additive(order), equal_sizes=True
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


class Differential(nn.Module):
    """The difference of two maps, of which only the first is masked where asked."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both = both

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        weights = torch.zeros(())
        for part, factor in ((slice(4), 1.0), (slice(4, None), -0.4)):
            scores = query[..., part] @ key[..., part].mT
            if attn_mask is not None and (self.both or factor > 0):
                scores = scores.masked_fill(~attn_mask, -torch.inf)
            weights = weights + factor * scores.softmax(-1)
        return weights @ value


@pytest.mark.parametrize(("both", "mistake"), [(True, None), (False, "hidden_key_pooled")])
def test_a_hidden_key_that_keeps_weight_in_one_of_two_maps_is_named(
    both: bool, mistake: str | None
) -> None:
    spec = attnbench.MechanismSpec(
        name="differential",
        make=lambda query_size, key_size, value_size: Differential(both),
        equal_sizes=True,
        conventions={"masks": ("boolean",), "hidden_slots": "finite"},
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


class Counted(nn.Module):
    """Scores of scaled dot products, in which a number stands for the keys beyond the length."""

    number = -1e6

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        scores = queries @ keys.mT * queries.shape[-1] ** -0.5
        if valid_lens is not None:
            lens = valid_lens.reshape(len(scores), -1, 1)
            scores = scores.masked_fill(torch.arange(keys.shape[1]) >= lens, self.number)
        return scores.softmax(-1) @ values


class NearZero(Counted):
    """The sign of the exponent is wrong."""

    number = -1e-6


class NotFarEnough(Counted):
    """Some scores lie further below zero."""

    number = -100.0


@pytest.mark.parametrize(
    ("make", "mistake"),
    [
        (Counted, None),
        (NearZero, "hidden_key_filled"),
        (NotFarEnough, "hidden_key_pooled_far"),
    ],
)
def test_a_hidden_key_that_keeps_weight_is_named_where_lengths_alone_hide(
    make: type[Counted], mistake: str | None
) -> None:
    (subject,) = resolve(textbook(make))
    assert "boolean" not in subject.conventions.masks
    assert own_mistake(subject) == mistake


class ScaledByKeys(Counted):
    """The scale is that of the number of keys, hidden ones too."""

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        factor = queries.shape[-1] ** 0.5 * keys.shape[1] ** -0.5
        return super().forward(queries * factor, keys, values, valid_lens)


@pytest.mark.parametrize(
    ("make", "mistake"), [(Counted, None), (ScaledByKeys, "hidden_keys_counted")]
)
def test_the_number_of_hidden_keys_is_no_wrong_length(
    make: type[Counted], mistake: str | None
) -> None:
    (subject,) = resolve(textbook(make))
    assert own_mistake(subject) == mistake


def test_lengths_beside_positions_by_distance_count_no_hidden_keys() -> None:
    class ByDistance(Counted):
        def forward(
            self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
        ) -> Tensor:
            q_len, kv_len = queries.shape[1], keys.shape[1]
            far = torch.arange(kv_len) - torch.arange(kv_len - q_len, kv_len)[:, None]
            scores = queries @ keys.mT * queries.shape[-1] ** -0.5 - far.abs() / 2
            if valid_lens is not None:
                hidden = torch.arange(kv_len) >= valid_lens.reshape(len(scores), -1, 1)
                scores = scores.masked_fill(hidden, self.number)
            return scores.softmax(-1) @ values

    (subject,) = resolve(textbook(ByDistance, conventions={"positions": "relative"}))
    assert own_mistake(subject) is None


class Projected(nn.Module):
    """Attention behind projections, whose weights nobody sees; softmax runs over an axis."""

    def __init__(self, size: int, axis: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.axis = axis

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> Tensor:
        scores = self.query(query) @ self.key(key).mT
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(self.axis) @ self.value(value)


@pytest.mark.parametrize(("axis", "mistake"), [(-1, None), (-2, "softmax_over_the_queries")])
def test_a_softmax_over_the_queries_shows_where_no_weights_do(
    axis: int, mistake: str | None
) -> None:
    spec = attnbench.MechanismSpec(
        name="projected", make=lambda size, *_: Projected(size, axis), equal_sizes=True
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


@pytest.mark.parametrize("causal", ["bottom_right", "always"])
def test_one_query_that_reads_its_own_key_alone_shows_no_softmax_over_queries(causal: str) -> None:
    class Square(Projected):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            later = torch.ones(query.shape[-2], key.shape[-2]).triu(1).bool()
            hidden = later if attn_mask is None else later | ~attn_mask
            scores = self.query(query) @ self.key(key.detach()).mT
            scores = scores.masked_fill(hidden, -torch.inf)
            return scores.softmax(-1) @ self.value(value)

    spec = attnbench.MechanismSpec(
        name="square",
        make=lambda size, *_: Square(size, -1),
        equal_sizes=True,
        sizes=lambda sizes: sizes.replace(kv_len=sizes.q_len),
        conventions={"causal": causal},
    )
    (subject,) = resolve(spec)
    assert wrong_axis(subject) is None


@pytest.mark.parametrize("mode", ["mean", "norm", "neighbours"])
def test_a_hidden_value_that_reaches_the_output_beside_the_weights_is_no_filled_score(
    mode: str,
) -> None:
    class Beside(Projected):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> Tensor:
            value = self.value(value)
            if mode == "norm":
                value = value / value.std(-2, keepdim=True)
            if mode == "neighbours":
                value = value + 0.5 * value.roll(1, -2)
            scores = self.query(query) @ self.key(key).mT
            if attn_mask is not None:
                scores = scores.masked_fill(~attn_mask, -torch.inf)
            output = scores.softmax(-1) @ value
            return output + value.mean(-2, keepdim=True) if mode == "mean" else output

    spec = attnbench.MechanismSpec(
        name="beside", make=lambda size, *_: Beside(size, -1), equal_sizes=True
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == "hidden_key_pooled"


class Normalised(nn.Module):
    """Scores of normalised queries and keys; ``mode`` tells in which dtype squares are summed."""

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.mode = mode

    def norm(self, tensor: Tensor) -> Tensor:
        wide = torch.promote_types(tensor.dtype, torch.float32)
        squares = tensor if self.mode == "narrow" else tensor.to(wide)
        mean = squares.square().mean(-1, keepdim=True).to(wide)
        return tensor.to(wide) if self.mode == "none" else tensor.to(wide) / (mean + 1e-6).sqrt()

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = self.norm(query) @ self.norm(key).mT / query.shape[-1]
        return scores.to(query.dtype) if self.mode == "none" else scores


@pytest.mark.parametrize(
    ("mode", "mistake"), [("wide", None), ("none", None), ("narrow", "squares_overflow")]
)
def test_squares_that_overflow_in_a_norm_show_where_the_scores_do_not_grow(
    mode: str, mistake: str | None
) -> None:
    def make(query_size: int, key_size: int) -> nn.Module:
        return Normalised(mode)

    spec = attnbench.ScoringSpec(name="normed", make=make, equal_sizes=True)
    (subject,) = resolve(spec)
    assert own_mistake(subject) == mistake


class Placed(nn.Module):
    """Dot products, and a number by the distance of query and key."""

    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.mistake, self.table = mistake, torch.randn(9)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        q_len, kv_len = query.shape[-2], key.shape[-2]
        first = 0 if self.mistake == "queries_counted_from_the_first_key" else kv_len - q_len
        steps = torch.arange(kv_len) - torch.arange(first, first + q_len)[:, None]
        most = min(4, kv_len - 1) if self.mistake == "scores_by_later_count" else 4
        number = self.table.to(query)[steps.clamp(-most, most) + most]
        if self.mistake == "scores_of_later_keys_shifted":
            number = number + (steps > 0) * kv_len * torch.arange(kv_len)
        if self.mistake == "scores_not_by_distance":
            number = number + torch.arange(kv_len) * torch.arange(kv_len - q_len, kv_len)[:, None]
        if self.mistake == "numbers_in_half":
            number = number + torch.arange(kv_len).to(query.dtype).double().sin().to(number)
        elif not self.mistake:
            number = number + number[:1, :1]
        return query @ key.mT + number


@pytest.mark.parametrize(
    "mistake",
    [
        "",
        "queries_counted_from_the_first_key",
        "scores_by_later_count",
        "scores_of_later_keys_shifted",
        "scores_not_by_distance",
        "numbers_in_half",
    ],
)
def test_what_is_wrong_with_scores_by_distance_shows_by_themselves(mistake: str) -> None:
    laws = () if mistake == "numbers_in_half" else ("leading_padding_equals_deleting",)
    spec = attnbench.ScoringSpec(
        name="placed", make=lambda *sizes: Placed(mistake), equal_sizes=True, laws=laws
    )
    (subject,) = resolve(spec)
    assert own_mistake(subject) == (mistake or None)


def test_scores_by_their_count_are_blamed_for_what_states_it_alone() -> None:
    class Counted(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return query @ key.tanh().mT * math.log(1 + key.shape[-2])

    spec = attnbench.ScoringSpec(
        name="mine", make=lambda *sizes: Counted(), equal_sizes=True, laws=("bilinear",)
    )
    (subject,) = resolve(spec)
    failure, mistake = Failure(case=Case((2,), 4, 6, 8, 8, 8).id), "scores_by_later_count"
    assert own_mistake(subject) == mistake
    names = ("bilinear", "decode_equals_prefill")
    found = [explains(mistake, subject, i, failure) for i in select_invariants(names)]
    assert found == [False, True]


def test_scores_that_are_drawn_anew_name_no_mistake() -> None:
    class Noisy(Placed):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            return super().forward(query, key) + torch.rand(query.shape[-2], key.shape[-2])

    spec = attnbench.ScoringSpec(name="noisy", make=lambda *sizes: Noisy(""), equal_sizes=True)
    (subject,) = resolve(spec)
    assert own_mistake(subject) is None


@pytest.mark.parametrize("mistake", ["", "heads_read_together", "items_read_together"])
def test_scores_that_other_heads_or_items_reach_show_by_themselves(mistake: str) -> None:
    class Centred(nn.Module):
        def forward(self, query: Tensor, key: Tensor) -> Tensor:
            axes = {"heads_read_together": (1, -1), "items_read_together": (0, -1)}
            more = key.dim() > 3 or mistake != "heads_read_together"
            over = axes.get(mistake, -1) if more and key.dim() > 2 else -1
            return query @ (key - key.mean(over, keepdim=True)).mT

    spec = attnbench.ScoringSpec(name="centred", make=lambda *sizes: Centred(), equal_sizes=True)
    (subject,) = resolve(spec)
    assert own_mistake(subject) == (mistake or None)
    meant = replace(spec, exempt=dict.fromkeys(STATED_BY.get(mistake, ()), "by design"))
    (subject,) = resolve(meant)
    assert own_mistake(subject) != (mistake or "mistake")


@pytest.mark.parametrize(("gated", "summed"), [(True, False), (False, True), (False, False)])
def test_weights_of_one_are_a_mistake_where_no_scores_change_them(
    gated: bool, summed: bool
) -> None:
    class Ones(nn.Module):
        def forward(
            self,
            query: Tensor,
            key: Tensor,
            value: Tensor,
            attn_mask: Tensor | None = None,
            return_weights: bool = False,
        ) -> Any:
            scores = query @ key.mT + 20
            weights = nn.functional.hardsigmoid(scores) if gated else scores[None].softmax(0)[0]
            return (weights @ value, weights) if return_weights else weights @ value

    spec = attnbench.MechanismSpec(
        name="mine",
        make=lambda *sizes: Ones(),
        equal_sizes=True,
        accepts=("return_weights",),
        exempt={"weights_sum_to_one": "they are summed"} if summed else {},
    )
    (subject,) = resolve(spec)
    assert (own_mistake(subject) == "softmax_over_one") == (not gated and not summed)


class DotProducts(nn.Module):
    """A textbook's attention, whose softmax runs over another axis, or whose lengths are lost."""

    def __init__(self, axes: tuple[int, int], counts: bool) -> None:
        super().__init__()
        self.axes, self.counts = axes, counts
        self.attention_weights: Tensor | None = None

    def forward(
        self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Tensor | None = None
    ) -> Tensor:
        scores, axis = queries @ keys.mT, self.axes[valid_lens is not None]
        if valid_lens is not None and self.counts:
            hidden = torch.arange(keys.shape[1]) >= valid_lens.reshape(len(keys), -1, 1)
            scores = scores.masked_fill(hidden, -1e6)
        self.attention_weights = scores[None].softmax(axis)[0]
        return self.attention_weights @ values


@pytest.mark.parametrize(
    ("axes", "counts", "mistake"),
    [
        ((-1, -1), True, None),
        ((-1, -2), True, "softmax_over_the_queries"),
        ((0, 0), True, "softmax_over_one"),
        ((-1, -1), False, "lengths_ignored"),
    ],
)
def test_a_textbooks_softmax_and_lengths_are_told_apart(
    axes: tuple[int, int], counts: bool, mistake: str | None
) -> None:
    (subject,) = resolve(textbook(DotProducts(axes, counts)))
    assert own_mistake(subject) == mistake
