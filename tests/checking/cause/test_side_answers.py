"""What log-sum-exps and dropout show, where the output is right without dropout."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.adapters import sdpa
from attnbench.cases.case import Case
from attnbench.checking.cause.replays import explains
from attnbench.checking.cause.side_answers import side_mistake
from attnbench.checking.cause.witnesses import explanations
from attnbench.checking.known_causes import cause_in_words, cause_of_mistake
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.invariants.toolkit.comparisons import fails
from attnbench.subject.lookup import resolve

LOG_SUMS: dict[str | None, Callable[[Tensor, Tensor, float], Tensor]] = {
    None: lambda top, rest, scale: top + rest,
    "log_sum_without_maximum": lambda top, rest, scale: rest,
    "log_sum_with_maximum_twice": lambda top, rest, scale: top + rest + top,
    "log_sum_is_maximum": lambda top, rest, scale: top,
    "log_sum_is_sum": lambda top, rest, scale: (top + rest).exp(),
    "log_sum_is_shifted_sum": lambda top, rest, scale: rest.exp(),
    "log_sum_of_sum_without_logarithm": lambda top, rest, scale: top + rest.exp(),
    "log_sum_negated": lambda top, rest, scale: -top - rest,
    "log_sum_scaled": lambda top, rest, scale: scale * (top + rest),
    "log_sum_of_two_bases": lambda top, rest, scale: top / math.log(2.0) + rest,
}
OTHERS = (
    "log_sum_of_smoothed_keys",
    "log_sum_of_mean",
    "log_sum_without_mask",
    "log_sum_without_scale",
)


class Summed(nn.Module):
    def __init__(self, mistake: str | None) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scale = query.shape[-1] ** -0.5
        bare = query @ key.mT
        mask = torch.ones_like(bare, dtype=torch.bool) if attn_mask is None else attn_mask
        scores = (bare * scale).masked_fill(~mask, -math.inf)
        lse, top = scores.logsumexp(-1), scores.amax(-1)
        output = scores.softmax(-1).nan_to_num(0.0) @ value
        if self.mistake == "other":
            return output, lse + 0.1 * top.sin()
        if self.mistake == "log_sum_of_smoothed_keys":
            return output, lse - scale * bare.mean(-1)
        if self.mistake == "log_sum_of_mean":
            return output, lse - mask.expand_as(bare).sum(-1).log()
        if self.mistake == "log_sum_without_mask":
            return output, (bare * scale).logsumexp(-1)
        if self.mistake == "log_sum_without_scale":
            return output, bare.masked_fill(~mask, -math.inf).logsumexp(-1)
        return output, LOG_SUMS[self.mistake](top, lse - top, scale)


@pytest.mark.parametrize("mistake", [*LOG_SUMS, *OTHERS, "other"])
def test_a_wrong_log_sum_is_told_by_what_gives_it(mistake: str | None) -> None:
    spec = attnbench.MechanismSpec(
        name="summed",
        make=lambda *sizes: Summed(mistake),
        equal_sizes=True,
        returns=("output", "lse"),
        laws=("pools_values",),
        conventions={"masks": ("boolean",)},
    )
    (subject,) = resolve(spec)
    assert side_mistake(subject) == (None if mistake == "other" else mistake)


def test_a_log_sum_in_base_two_may_be_of_two_bases_as_well() -> None:
    class Binary(Summed):
        def forward(
            self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            output, lse = super().forward(query, key, value)
            top = (query @ key.mT).amax(-1) * query.shape[-1] ** -0.5
            return output, top + (lse - top) / math.log(2.0)

    spec = attnbench.MechanismSpec(
        name="binary",
        make=lambda *sizes: Binary(None),
        equal_sizes=True,
        returns=("output", "lse"),
        laws=("pools_values",),
        conventions={"masks": (), "lse_base": "2"},
    )
    (subject,) = resolve(spec)
    assert side_mistake(subject) == "log_sum_of_two_bases"


class Capped(nn.Module):
    def __init__(self, mistake: str | None) -> None:
        super().__init__()
        self.mistake = mistake

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        scale: float | None = None,
        softcap: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        default = query.shape[-1] ** -0.5
        bare = query @ key.mT
        raw = bare * (default if scale is None else scale)
        scores = raw if softcap is None else softcap * (raw / softcap).tanh()
        output = scores.softmax(-1) @ value
        sums = {"log_sum_ignores_softcap": raw, "log_sum_ignores_scale": bare * default}
        return output, sums.get(self.mistake or "", scores).logsumexp(-1)


@pytest.mark.parametrize("mistake", [None, "log_sum_ignores_softcap", "log_sum_ignores_scale"])
def test_a_log_sum_that_ignores_an_option_is_found_and_told(mistake: str | None) -> None:
    taken = ("softcap",) if mistake == "log_sum_ignores_softcap" else ("scale",)
    spec = attnbench.MechanismSpec(
        name="capped",
        make=lambda *sizes: Capped(mistake),
        equal_sizes=True,
        returns=("output", "lse"),
        accepts=taken,
        laws=("pools_values",),
        conventions={"masks": ()},
    )
    (subject,) = resolve(spec)
    assert side_mistake(subject) == mistake
    (chosen,) = select_invariants(["log_sums_are_those_of_the_scores"])
    for given in ("nothing", *taken):
        case = Case((2, 3), 4, 6, 8, 8, 5).tried(given=given)
        assert fails(chosen.check, subject, case) is (given != "nothing" and mistake is not None)


Drop = Callable[[Tensor, float], Tensor]


def kept(weights: Tensor, share: float) -> Tensor:
    return torch.rand_like(weights) < share


DROPS: dict[str | None, Drop] = {
    None: nn.functional.dropout,
    "dropout_ignored": lambda weights, p: weights,
    "dropout_not_rescaled": lambda weights, p: weights * kept(weights, 1 - p),
    "dropout_divided_by_its_share": lambda weights, p: weights * kept(weights, 1 - p) / p,
    "dropout_multiplied": lambda weights, p: weights * kept(weights, 1 - p) * (1 - p),
    "dropout_drawn_of_the_kept_share": lambda weights, p: weights * kept(weights, p) / (1 - p),
    "dropout_of_the_kept_share": lambda weights, p: weights * kept(weights, p) / p,
    "dropout_twice": lambda weights, p: nn.functional.dropout(nn.functional.dropout(weights, p), p),
    "other": lambda weights, p: nn.functional.dropout(weights, p / 2),
}


def dropping(mistake: str | None) -> Callable[..., Tensor]:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
    ) -> Tensor:
        scores = query @ key.mT * query.shape[-1] ** -0.5
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -math.inf)
        if mistake == "dropout_before_softmax" and dropout_p:
            scores = scores.masked_fill(~kept(scores, 1 - dropout_p), -math.inf)
        weights = scores.softmax(-1)
        if mistake in DROPS and dropout_p:
            weights = DROPS[mistake](weights, dropout_p)
        output: Tensor = weights @ value
        on_output = mistake == "dropout_on_the_output"
        return nn.functional.dropout(output, dropout_p) if on_output else output

    return attention


@pytest.mark.parametrize("mistake", [*DROPS, "dropout_before_softmax", "dropout_on_the_output"])
def test_wrong_dropout_is_told_by_the_weights_that_it_leaves(mistake: str | None) -> None:
    (subject,) = resolve(sdpa(dropping(mistake), name="mine"))
    assert side_mistake(subject) == (None if mistake == "other" else mistake)


def test_the_cause_of_a_wrong_log_sum_is_in_words_of_what_gives_it() -> None:
    spec = attnbench.MechanismSpec(
        name="summed",
        make=lambda *sizes: Summed("log_sum_without_maximum"),
        equal_sizes=True,
        returns=("output", "lse"),
        laws=("pools_values",),
        conventions={"masks": ("boolean",)},
    )
    (subject,) = resolve(spec)
    found = explanations(subject)
    (chosen,) = select_invariants(["log_sums_are_those_of_the_scores"])
    assert explains(found[0], subject, chosen, Failure(quantity="lse", case=Case().id))
    words = cause_in_words(cause_of_mistake(found[0]), found)
    assert words.startswith("the log-sum-exp lacks the largest score of the row")
