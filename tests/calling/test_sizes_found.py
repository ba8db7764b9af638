"""The sizes that code takes, found from small calls and from what they raise."""

from __future__ import annotations

import torch
from attnbench_plugins.adapters.adaptation import spec_of
from torch import Tensor, nn

from attnbench.specs import LayerSpec, MechanismSpec, Sizes


class Captioning(nn.Module):
    """One state over the regions of an image; its squeeze does nothing where there are items."""

    def __init__(self, encoder_dim: int, decoder_dim: int, attention_dim: int) -> None:
        super().__init__()
        self.regions = nn.Linear(encoder_dim, attention_dim)
        self.state = nn.Linear(decoder_dim, attention_dim)
        self.score = nn.Linear(attention_dim, 1)

    def forward(self, encoder_out: Tensor, decoder_hidden: Tensor) -> tuple[Tensor, Tensor]:
        both = self.regions(encoder_out) + self.state(decoder_hidden).unsqueeze(1)
        weights = self.score(both.relu()).squeeze(2).softmax(1)
        return (encoder_out * weights.unsqueeze(2)).sum(1), weights


class Linearised(nn.Module):
    """An einsum, which stretches a single feature to any number of them."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        weights = torch.einsum("blhe,bshe->bhls", queries, keys).softmax(-1)
        return torch.einsum("bhls,bshd->blhd", weights, values)


class Fixed(nn.Module):
    """A number of features that is written into the code."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.score = nn.Linear(48, 48), nn.Linear(48, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.score((key + self.query(query).unsqueeze(1)).tanh()).squeeze(-1).softmax(1)
        return (weights.unsqueeze(1) @ key).squeeze(1), weights


class Table(nn.Module):
    """A table of positions that ends."""

    def __init__(self, dim: int, max_seq: int = 40) -> None:
        super().__init__()
        self.query, self.table = nn.Linear(dim, dim), nn.Parameter(torch.randn(max_seq, max_seq))

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = self.query(query) @ key.mT + self.table[: query.shape[1], : key.shape[1]]
        return (scores * query.shape[-1] ** -0.5).softmax(-1) @ value


class Threes(nn.Module):
    """Threes of tokens; the trials have three items, and five tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        placed = x + torch.arange(x.shape[1] // 3).repeat(3).sin()[:, None]
        scores = self.query(placed) @ self.key(placed).mT * x.shape[-1] ** -0.5
        return scores.softmax(-1) @ x


class Either(nn.Module):
    """It runs on (B, H, L, E), too, where its heads would not be apart."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        assert keys.shape[1:3] == queries.shape[1:3]
        weights = torch.einsum("blhe,bshe->bhls", queries, keys).softmax(-1)
        return torch.einsum("bhls,bshd->blhd", weights, values)


def _legal(target: type[nn.Module], *sizes: int) -> tuple[Sizes, tuple[str, ...]]:
    spec = spec_of(target)
    assert isinstance(spec, MechanismSpec)
    assert spec.sizes is not None
    return spec.sizes(Sizes((), *sizes)), getattr(spec, "notes", ())


def test_a_call_that_gives_an_output_goes_before_one_that_only_sums_to_one() -> None:
    _, notes = _legal(Captioning, 3, 5, 4, 4, 4)
    assert notes[0].startswith("called with encoder_out (B, S, E), decoder_hidden (B, E)")


def test_the_axis_that_keeps_what_is_on_it_apart_has_the_heads() -> None:
    _, notes = _legal(Either, 3, 5, 4, 4, 4)
    assert notes[0].startswith("called with queries (B, L, H, E), keys (B, S, H, E)")


def test_features_that_differ_are_tried_with_more_than_one_of_each() -> None:
    legal, _ = _legal(Linearised, 3, 5, 2, 3, 4)
    assert (legal.query_size, legal.key_size, legal.value_size) == (2, 2, 4)


def test_a_number_of_features_in_the_code_is_read_from_what_it_raises() -> None:
    legal, _ = _legal(Fixed, 3, 5, 4, 4, 4)
    assert (legal.query_size, legal.key_size, legal.value_size) == (48, 48, 48)


def test_queries_that_are_called_one_by_one_are_fewer_where_keys_are_many_and_wide() -> None:
    legal, _ = _legal(Fixed, 2048, 2048, 4, 4, 4)
    assert legal.q_len * legal.kv_len * legal.key_size <= 2**22
    assert legal.kv_len == 2048


def test_more_tokens_than_a_table_has_are_not_tried_and_that_is_said() -> None:
    legal, notes = _legal(Table, 64, 100, 4, 4, 4)
    assert (legal.q_len, legal.kv_len) == (40, 40)
    [said] = [note for note in notes if note.startswith("not tried with more than 40 queries")]
    assert "RuntimeError: The size of tensor a (41)" in said


class Rotary(nn.Module):
    """Half of each head's features is turned by the other half, so that heads are even."""

    def __init__(self, dim: int, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.qkv = heads, nn.Linear(dim, 3 * dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in self.qkv(x).chunk(3, -1))
        q, k, v = (p.transpose(1, 2) for p in (q, k, v))
        half = q.shape[-1] // 2
        angles = torch.arange(x.shape[1])[:, None] * 100.0 ** -torch.linspace(0, 1, half)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        q, k = (
            torch.cat([p[..., :half] * cos + p[..., half:] * sin, p[..., half:] * cos], -1)
            for p in (q, k)
        )
        return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_number_of_features_that_an_odd_multiple_of_it_does_not_fit_is_no_unit() -> None:
    spec = spec_of(Rotary)
    assert isinstance(spec, LayerSpec)
    assert spec.sizes is not None
    assert [spec.sizes(size) for size in (2, 6, 10)] == [4, 8, 12]


def test_items_that_attend_to_each_other_are_tokens() -> None:
    spec = spec_of(Threes)
    assert isinstance(spec, LayerSpec)
    assert spec.notes[0].startswith("called with x (B, L, E)")
    assert spec.tokens is not None
    assert spec.tokens % 3 == 0
