from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench import adapters
from attnbench.adapters import textbook
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve

LOOKED_AT = [
    "agrees_with_float64",
    "empty_rows_give_zeros",
    "keeps_the_contract",
    "leading_sizes_fold",
    "masked_weights_are_zero",
    "valid_lengths_count_the_keys",
    "weights_sum_to_one",
]


def weights_of(scores: Tensor, valid_lens: Tensor | None) -> Tensor:
    if valid_lens is None:
        return scores.softmax(-1)
    lengths = valid_lens.reshape(valid_lens.shape[0], -1, 1)
    return scores.masked_fill(torch.arange(scores.shape[-1]) >= lengths, -1e6).softmax(-1)


class DotProduct(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return torch.bmm(queries, keys.transpose(1, 2)) / math.sqrt(queries.shape[-1])

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        self.attention_weights = weights_of(self.scores(queries, keys), valid_lens)
        return torch.bmm(self.dropout(self.attention_weights), values)


class TooShort(DotProduct):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        shorter = None if valid_lens is None else (valid_lens - 1).clamp_min(1)
        return super().forward(queries, keys, values, shorter)


class OneLength(DotProduct):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        scores = self.scores(queries, keys)
        if valid_lens is not None:
            hidden = torch.arange(scores.shape[-1]) >= valid_lens[:, None]
            scores = scores.masked_fill(hidden[:, None], -1e6)
        return torch.bmm(scores.softmax(-1), values)


class Additive(nn.Module):
    def __init__(self, key_size: int, query_size: int, num_hiddens: int, dropout: float) -> None:
        super().__init__()
        self.key_proj = nn.Linear(key_size, num_hiddens, bias=False)
        self.query_proj = nn.Linear(query_size, num_hiddens, bias=False)
        self.out = nn.Linear(num_hiddens, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, valid_len: Tensor | None) -> Any:
        hidden = self.query_proj(query).unsqueeze(2) + self.key_proj(key).unsqueeze(1)
        weights = weights_of(self.out(hidden.tanh()).squeeze(-1), valid_len)
        return {"weights": weights, "context": weights @ value}


def edits(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    queries /= queries.shape[-1] ** 0.5
    return (queries @ keys.mT).softmax(-1) @ values


class AlwaysDropping(DotProduct):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        weights = weights_of(self.scores(queries, keys), valid_lens)
        return nn.functional.dropout(weights, self.dropout.p) @ values  # in evaluation as well


class Turned(DotProduct):
    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return -super().scores(queries, keys)


class Bilinear(DotProduct):
    def __init__(self, query_size: int, key_size: int, dropout: float) -> None:
        super().__init__(dropout)
        self.matrix = nn.Parameter(torch.randn(query_size, key_size) / query_size**0.5)

    def scores(self, queries: Tensor, keys: Tensor) -> Tensor:
        return queries @ self.matrix @ keys.mT


class Heads(nn.Module):
    """Of a mask, 0 hides, whatever its dtype; d_model is the size of everything."""

    def __init__(self, h: int, d_model: int) -> None:
        super().__init__()
        self.h, self.maps = h, nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(4))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Any = None) -> Tensor:
        query, key, value = (
            turn(x).unflatten(-1, (self.h, -1)).transpose(1, 2)
            for turn, x in zip(self.maps, (query, key, value), strict=False)
        )
        scores = query @ key.mT / math.sqrt(query.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask.unsqueeze(1) == 0, -1e9)
        return self.maps[-1]((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Pooling(nn.Module):
    """A decoder's attention: its values are its keys."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden_size, hidden_size)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        weights = (self.score(query) @ keys.mT).softmax(-1)
        return weights @ keys, weights


class Pooled(Pooling):
    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Any:  # type: ignore[override]
        rows = [super(Pooled, self).forward(row, key)[1] for row in query.split(1, 1)]
        weights = torch.cat(rows, 1)
        return weights @ value, weights


class ValuesFirst(nn.Module):
    """Heads on an axis of their own, over which a mask ``(B, 1, L, S)`` broadcasts."""

    is_right = True

    def __init__(self, embed_size: int, heads: int) -> None:
        super().__init__()
        self.heads, self.out = heads, nn.Linear(embed_size, embed_size)

    def forward(self, values: Tensor, keys: Tensor, query: Tensor, mask: Tensor | None) -> Tensor:
        v, k, q = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (values, keys, query))
        scores = q @ k.mT
        if mask is not None:
            hidden = mask == 0 if self.is_right else mask[:1] == 0
            scores = scores.masked_fill(hidden, -1e20)
        pooled = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        output: Tensor = self.out(pooled)
        return output


class MaskOfTheFirst(ValuesFirst):
    is_right = False


class Masked(nn.Module):
    """It needs its mask."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Any:
        weights = (
            (query @ key.mT / math.sqrt(query.shape[-1]))
            .masked_fill(mask == 0, -torch.inf)
            .softmax(-1)
        )
        return torch.bmm(weights, value), weights


class MaskedByHead(Masked):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Any:
        assert mask.dim() == 4
        return super().forward(query, key, value, mask[:, 0])


class NeedsLengths(DotProduct):
    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        assert valid_lens is not None
        return super().forward(queries, keys, values, valid_lens)


class Projected(nn.Module):
    """Attention whose values are projected, there and back, with biases."""

    def __init__(self, key_size: int, query_size: int, num_hiddens: int) -> None:
        super().__init__()
        sizes = query_size, key_size, key_size, num_hiddens
        self.query, self.key, self.value, self.out = (nn.Linear(n, num_hiddens) for n in sizes)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, valid_lens: Any = None) -> Any:
        scores = self.query(queries) @ self.key(keys).mT
        if valid_lens is not None:
            ends = valid_lens if valid_lens.dim() == 2 else valid_lens[:, None]
            hides = torch.arange(keys.shape[1]) >= ends[..., None]
            scores = scores.masked_fill(hides, -1e9)
        output: Tensor = self.out(scores.softmax(-1) @ self.value(values))
        return output


MEAN = {"empty_rows": "mean", "hidden_slots": "finite"}
BY_LENGTHS = {"masks": ("lengths",), **MEAN, "mask_value": -1e6}
BY_MASK = {"masks": ("boolean",), **MEAN, "mask_value": -999_999.0}
BOTH = ("valid_lens", "return_weights")
SPECS: list[tuple[Any, dict[str, Any], tuple[str, ...], bool]] = [
    (DotProduct, BY_LENGTHS, BOTH, True),
    (OneLength, BY_LENGTHS, ("valid_lens",), True),
    (NeedsLengths, BY_LENGTHS, BOTH, True),
    (Turned, BY_LENGTHS, BOTH, False),
    (Additive, {"masks": ("lengths",), **MEAN}, BOTH, True),
    (Projected, {**BY_LENGTHS, "mask_value": -999_999.0}, ("valid_lens",), False),
    (Bilinear, {**BY_LENGTHS, "mask_value": -999_999.0}, BOTH, True),
    (Heads, BY_MASK, (), False),
    (ValuesFirst, BY_MASK, (), False),
    (Masked, {"masks": ("boolean",), **MEAN, "empty_rows": "nan"}, ("return_weights",), True),
    (Pooled, {"masks": ()}, ("return_weights",), False),
]


@pytest.mark.parametrize(("make", "conventions", "accepts", "referenced"), SPECS)
def test_what_a_textbook_does_by_convention_is_found_by_calls(
    make: Any, conventions: dict[str, Any], accepts: tuple[str, ...], referenced: bool
) -> None:
    spec = textbook(make)
    assert dict(spec.conventions) == conventions
    assert spec.accepts == accepts
    assert (spec.reference is not None) == referenced
    assert spec.dtypes == ("float32", "float64")


@pytest.mark.parametrize(
    "make", [MaskedByHead, *(make for make, *_ in SPECS if make is not Turned)]
)
def test_a_right_class_is_not_accused(make: Any) -> None:
    names = [*LOOKED_AT, "masking_equals_deleting", "masks_broadcast"]
    report = attnbench.check(textbook(make), profile="quick", invariants=names)
    assert report.ok, str(report)
    assert len(report.of("passed")) >= 3


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (edits, "inputs_are_unchanged"),
        (TooShort, "valid_lengths_count_the_keys"),
        (AlwaysDropping, "keeps_the_contract"),
        (MaskOfTheFirst, "masking_equals_deleting"),
    ],
)
def test_a_wrong_class_fails(make: Any, name: str) -> None:
    report = attnbench.check(textbook(make), profile="quick", invariants=[name])
    assert [outcome.status for outcome in report.outcomes] == ["failed"], str(report)


def test_the_first_line_says_how_it_was_recognised_and_made() -> None:
    report = attnbench.check(
        DotProduct, style="textbook", profile="quick", invariants=["weights_sum_to_one"]
    )
    assert report.ok, str(report)
    (line,) = report.about
    assert line.startswith("DotProduct: called as textbook; called with queries (B, L, E), keys")
    assert "made by DotProduct(dropout=0.0)" in line
    assert "empty_rows=mean" in line
    assert "dropout was not looked at: it was made with dropout 0" in str(report)


@pytest.mark.parametrize(
    ("make", "masks"),
    [
        (DotProduct, "valid_lens (B, L), lengths"),
        (TooShort, "valid_lens (B, L), lengths"),  # as its name says, though it hides too much
        (Projected, "valid_lens (B, L), lengths"),  # in the layout in which its lengths are read
        (NeedsLengths, "valid_lens (B, L), lengths"),
        (MaskedByHead, "mask (B, 1, L, S), True may attend"),
    ],
)
def test_without_a_style_a_textbooks_class_is_called_as_small_calls_show(
    make: Any, masks: str
) -> None:
    (subject,) = resolve(make)
    assert isinstance(subject.spec, attnbench.MechanismSpec)
    assert subject.spec.reference is not None or make is Projected
    assert masks in subject.about[0]
    has_lengths = masks.endswith("lengths")
    assert ("called as textbook" in subject.about[0]) == has_lengths
    assert (subject.spec.dtypes == ("float32", "float64")) == has_lengths


def test_weights_that_no_call_gives_are_refused() -> None:
    def attend(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return (queries @ keys.mT).softmax(-1) @ values

    with pytest.raises(StyleError, match=r"no weights \(B, L, S\) are found in"):
        adapters.textbook(attend, accepts=("return_weights",))
    assert "return_weights" not in adapters.textbook(attend).accepts
