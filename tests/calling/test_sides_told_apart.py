"""Which side is which where names mislead, what else is given, and what is left out."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.examples import example_spec
from torch import Tensor, nn

import attnbench
from attnbench.errors import StyleError
from attnbench.specs import LayerSpec
from tests.attention_functions import statuses
from tests.calling.sources import found

SIDES = '''
class Named(nn.Module):
    """One state `h`, which is no height: nothing is a width."""
    def __init__(self, dim):
        super().__init__()
        self.map = nn.Linear(dim, dim, bias=False)
    def forward(self, h, context, mask=None):
        scores = (context @ self.map(h)[:, :, None]).squeeze(2)
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        weights = scores.softmax(1)
        return (weights[:, None] @ context).squeeze(1), weights

class Swapped(nn.Module):
    """Encoder states first; either may be the query but for what is pooled."""
    def __init__(self, n_channels):
        super().__init__()
        self.conv, self.score = nn.Conv1d(1, n_channels, 3, padding=1), nn.Linear(n_channels, 1)
    def forward(self, eh, dhx, ax=None):
        both = eh + dhx
        if ax is not None:
            both = both + self.conv(ax[:, None]).transpose(1, 2)
        weights = self.score(both.relu()).squeeze(2).softmax(1)
        return (eh * weights[:, :, None]).sum(1, keepdim=True), weights

class Combining(nn.Module):
    """Its context, of another size, is given beside the weights."""
    def __init__(self, dim, size=24):
        super().__init__()
        self.map, self.combine = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 24)
    def forward(self, query, memory):
        weights = (memory @ self.map(query)[:, :, None]).squeeze(2).softmax(1)
        return self.combine(weights[:, None] @ memory).tanh(), weights

class Pooling(nn.Module):
    """No weights come back, and its values are its keys."""
    def forward(self, query, keys, lengths):
        seen = torch.arange(keys.shape[1]) < lengths[:, None]
        return (query @ keys.mT).masked_fill(~seen[:, None], -1e4).softmax(-1) @ keys

class Longest(nn.Module):
    """The longest item of a batch is as long as the keys, or it raises."""
    def forward(self, decoder_state, source_hids, src_lengths):
        seen = torch.arange(int(src_lengths.max())) < src_lengths[:, None]
        scores = (source_hids @ decoder_state[:, :, None]).squeeze(2)
        weights = torch.where(seen, scores, torch.full_like(scores, -math.inf)).softmax(1)
        return (weights[:, None] @ source_hids).squeeze(1), weights

class OverOne(nn.Module):
    """Its softmax runs over the axis of the only query."""
    def forward(self, query, keys):
        weights = (query @ keys.mT / keys.shape[-1] ** 0.5).softmax(1)
        return torch.bmm(weights, keys[: len(query)]), weights

class OverQueries(nn.Module):
    """Its softmax runs over the queries."""
    def forward(self, output, context):
        weights = (output @ context.mT).softmax(1)
        return (weights @ context).tanh(), weights

class OverLater(nn.Module):
    """The same, though no key is a later one."""
    def forward(self, queries, keys, values):
        later = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool).triu(1)
        return (queries @ keys.mT).masked_fill(later, -math.inf).softmax(1) @ values

class Stated(nn.Module):
    """Its state is an LSTM's."""
    def forward(self, hidden, encoder_outputs):
        state, _ = hidden
        return (encoder_outputs @ state[-1][:, :, None]).squeeze(2).softmax(1)

class Paired(nn.Module):
    """Its keys and values are a pair."""
    def forward(self, query, encoder_out):
        keys, values = encoder_out
        return ((keys @ query[:, :, None]).softmax(1) * values).sum(1)

class ItselfOnly(nn.Module):
    """Its keys and values are read in attention to others alone, which it is not made for."""
    def __init__(self, embed_dim, cross=False):
        super().__init__()
        self.qkv, self.cross = nn.Linear(embed_dim, 3 * embed_dim), cross
    def forward(self, query, key, value):
        q, k, v = self.qkv(key + value if self.cross else query).chunk(3, -1)
        return torch.bmm((q @ k.mT / 4).softmax(-1), v)

class Halved(nn.Module):
    """Of one feature its values have none, and a residual hides that."""
    def __init__(self, d_model):
        super().__init__()
        self.v, self.out = nn.Linear(d_model, d_model // 2), nn.Linear(d_model // 2, d_model)
    def forward(self, q, k, v):
        return self.out(torch.bmm((q @ k.mT / 4).softmax(-1), self.v(v))) + q

class Both(nn.Module):
    """Two streams, and an output of each."""
    def __init__(self, v_dim, l_dim):
        super().__init__()
        self.v, self.l = nn.Linear(v_dim, 16), nn.Linear(l_dim, 16)
    def forward(self, v, l):
        q, k = self.v(v), self.l(l)
        return (q @ k.mT).softmax(-1) @ l, (k @ q.mT).softmax(-1) @ v

class Features(nn.Module):
    """No name tells its keys, which are projected before, from its values."""
    def __init__(self, dim):
        super().__init__()
        self.map, self.score = nn.Linear(dim, dim), nn.Linear(dim, 1)
    def forward(self, h, att_feats, p_att_feats, att_masks=None):
        weights = self.score((p_att_feats + self.map(h)[:, None]).tanh()).squeeze(2).softmax(1)
        if att_masks is not None:
            weights = weights * att_masks / (weights * att_masks).sum(1, keepdim=True)
        return (weights[:, None] @ att_feats).squeeze(1)

class Distances(nn.Module):
    """A table has a row for each distance of two tokens."""
    def forward(self, query, key, value, pos_embs):
        distances = (query @ pos_embs.mT).unfold(-1, key.shape[1], 1)[:, :, 0]
        scores = query @ key.mT + distances
        return scores.view(-1, query.shape[1], (pos_embs.shape[1] + 1) // 2).softmax(-1) @ value

class Silent(nn.Module):
    """Its train() gives nothing back."""
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
    def train(self, mode=True):
        super().train(mode)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT).softmax(-1) @ v
'''


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("OverOne", "weights_sum_to_one"),
        ("OverQueries", "weights_sum_to_one"),
        ("OverLater", "future_does_not_leak"),
    ],
)
def test_a_softmax_over_queries_is_found(tmp_path: Path, name: str, broken: str) -> None:
    report = attnbench.check(found(tmp_path, SIDES, name), profile="quick", invariants=[broken])
    assert set(statuses(report).values()) == {"failed"}, str(report)
    assert "(B, S, E)" in str(report)


def test_a_gradient_of_another_branch_at_a_tie_alone_is_no_fault() -> None:
    def tied(x: Tensor) -> Tensor:
        return torch.where(x == x.roll(1, 1), 2 * x - x.roll(1, 1), x)

    names = ["gradients_are_right"]
    report = attnbench.check(tied, example=torch.randn(2, 9, 16), profile="quick", invariants=names)
    assert set(statuses(report).values()) == {"passed"}, str(report)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Named", "called with h (B, E), context (B, S, E); mask (B, S), True hides"),
        ("Swapped", "called with eh (B, S, E), dhx (B, 1, E); left at their defaults: ax"),
        ("Combining", "it gives a tensor (B, 1, ?) as well, not looked at"),
        ("Pooling", "lengths (B,), lengths"),
        ("Longest", "always src_lengths=S (B,); **no mask"),
        ("ItselfOnly", "called with query (B, L, E), key (B, L, E), value (B, L, E)"),
        ("Halved", "called with q (B, L, E), k (B, S, E), v (B, S, E)"),
        ("Both", "it gives a tensor (B, S, E) as well, not looked at"),
        ("Features", "p_att_feats (B, S, E); att_masks (B, S), True may attend"),
        ("Distances", "always pos_embs=0.5 (1, 2S-1, E)"),
        ("Stated", "called with hidden 2 times (1, B, E), encoder_outputs (B, S, E)"),
        ("Paired", "called with query (B, E), encoder_out 2 times (B, S, E)"),
        ("Silent", "called with x (B, L, E)"),
    ],
)
def test_each_is_called_as_its_author_calls_it_and_accused_of_nothing(
    tmp_path: Path, name: str, said: str
) -> None:
    target = found(tmp_path, SIDES, name)
    names = ["gradients_reach_every_parameter", "items_are_independent", "keeps_the_contract"]
    names += ["every_attendable_key_matters", "masking_equals_deleting"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float32"])
    assert "failed" not in statuses(report).values(), str(report)
    assert said in "; ".join(report.about)


class Fixed(nn.Module):
    """A table of biases has a row for each of 12 tokens."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.qkv, self.bias = nn.Linear(dim, 3 * dim), nn.Parameter(torch.randn(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        """``(B, 12, E)`` to the same."""
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT + self.bias).softmax(-1) @ v


class Tupled(nn.Module):
    """A memory and its mask come in a tuple, beside a state with an axis of layers."""

    def forward(self, x: Tensor, hidden: Tensor, memory: tuple[Tensor, Tensor]) -> Tensor:
        """The context, of another shape than anything given."""
        weights = (memory[0] @ hidden[-1][:, :, None]).squeeze(2).softmax(1)
        return (weights[:, None] @ memory[0]).flatten()


def test_an_example_of_a_fixed_number_of_tokens_is_checked_at_that_number() -> None:
    spec = example_spec(Fixed(16), torch.randn(3, 12, 16))
    assert isinstance(spec, LayerSpec)
    assert spec.tokens == 12
    names = ["keeps_the_contract", "items_are_independent"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_the_advice_on_an_example_counts_the_tokens_of_all_that_is_given() -> None:
    memory = torch.randn(3, 9, 16), torch.ones(3, 9, dtype=torch.bool)
    with pytest.raises(StyleError, match="one of a function or module"):
        example_spec(Tupled(), (torch.randn(3, 1, 24), torch.randn(2, 3, 16), memory))


class Normed(nn.Module):
    """Trains with the mean of the batch."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.key, self.norm = nn.Linear(dim, dim), nn.BatchNorm1d(dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Scores of normed keys."""
        normed = self.norm(self.key(key).mT).mT
        return (query @ normed.mT).softmax(-1) @ value


def test_a_batch_norm_is_no_fault_of_training() -> None:
    names = ["training_equals_evaluation", "inputs_are_unchanged"]
    report = attnbench.check(spec_of(Normed), profile="quick", invariants=names, dtypes=["float32"])
    assert statuses(report) == {
        "training_equals_evaluation": "skipped",
        "inputs_are_unchanged": "passed",
    }


class Centred(nn.Module):
    """Wrong: its keys are centred over the batch; its number of features is 64."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(64, 64), nn.Linear(64, 64)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """One output for each query."""
        key = self.k(key) - self.k(key).mean(0)
        return (self.q(query) @ key.mT / 8).softmax(-1) @ value


def test_what_takes_one_large_number_of_features_is_held_to_everything() -> None:
    names = ["item_alone_equals_item_in_batch", "keys_permute_freely"]
    report = attnbench.check(
        spec_of(Centred), profile="quick", invariants=names, dtypes=["float32"]
    )
    assert statuses(report) == {
        "item_alone_equals_item_in_batch": "failed",
        "keys_permute_freely": "passed",
    }
