"""What no name tells: which argument is which, in which order its output comes, what it views."""

from __future__ import annotations

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.examples import example_spec
from attnbench_plugins.adapters.trials.fitting import prior_of
from torch import Tensor, nn
from torch.nn.utils import weight_norm

import attnbench
from attnbench.errors import StyleError

FEW = ["keeps_the_contract", "leading_sizes_fold", "keys_permute_freely"]


class Projected(nn.Module):
    """One state over values and their projected keys, none of which has a usual name."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.score = nn.Linear(10, 6), nn.Linear(6, 1)

    def forward(self, h: Tensor, feats: Tensor, p_feats: Tensor) -> Tensor:
        scores = self.score((p_feats + self.state(h)[:, None]).tanh()).squeeze(-1)
        return (scores.softmax(-1)[:, None] @ feats).squeeze(1)


class Flattened(nn.Module):
    """One state over a memory, beside whose items and slots in one axis it gets a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.score = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(
        self, s_hat: Tensor, memory: Tensor, rows: Tensor, padding_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        items, slots, width = memory.shape
        own = self.state(s_hat)[:, None].expand(items, slots, width).reshape(-1, width)
        scores = self.score((rows + own).tanh()).view(items, slots)
        weights = scores.softmax(-1) * padding_mask
        weights = weights / weights.sum(-1, keepdim=True)
        return (weights[:, None] @ memory).squeeze(1), weights


class Viewing(nn.Module):
    """Dot products of sequences of which items are the second axis, by views."""

    def forward(self, query: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        length, items, width = query.shape
        rows = query.view(-1, width).reshape(length, items, width).transpose(0, 1)
        memory = context.view(-1, width).reshape(-1, items, width).transpose(0, 1)
        weights = (rows @ memory.mT).softmax(-1)
        return (weights @ memory).transpose(0, 1), weights


class Turned(nn.Module):
    """Items come first in its arguments, and second in its output."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return ((query @ key.mT).softmax(-1) @ value).transpose(0, 1)


class OneKnown(nn.Module):
    """Only the query has a usual name."""

    def forward(self, tops: Tensor, query: Tensor, bottoms: Tensor) -> Tensor:
        return (query @ bottoms.mT).softmax(-1) @ tops


def test_keys_that_an_example_gives_beside_the_values_are_theirs() -> None:
    example = (torch.randn(6, 10), torch.randn(6, 7, 12), torch.randn(6, 7, 6))
    found = attnbench.check(Projected(), example=example, profile="quick", invariants=FEW)
    assert "called with h (B, E), feats (B, S, E), p_feats (B, S, E)" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


def test_items_and_slots_in_one_axis_of_an_example_are_cut_apart() -> None:
    example = (torch.randn(3, 8), torch.randn(3, 9, 8), torch.randn(27, 8), torch.ones(3, 9))
    found = attnbench.check(Flattened(), example=example, profile="quick", invariants=FEW[:2])
    assert "padding_mask (B, S), True may attend" in found.about[0]
    assert "more than 9 queries or keys" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


def test_what_views_its_tensors_gets_contiguous_ones_and_that_is_said() -> None:
    found = attnbench.check(spec_of(Viewing), profile="quick", invariants=FEW)
    assert "made contiguous, without which it raises: query, context" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


@pytest.mark.parametrize("target", [Turned, OneKnown])
def test_which_axis_and_which_argument_is_which_is_told_by_sizes(target: type[nn.Module]) -> None:
    found = attnbench.check(spec_of(target), profile="quick", invariants=FEW)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Normed(nn.Module):
    """A projection whose weight is computed anew in each call, and kept with its graph."""

    def __init__(self, q_dim: int, v_dim: int) -> None:
        super().__init__()
        self.project = weight_norm(nn.Linear(v_dim, q_dim))

    def forward(self, q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, E)`` and ``(B, S, E)`` to a context and weights."""
        weights = (self.project(v) @ q.unsqueeze(-1)).squeeze(-1).softmax(-1)
        return (weights[:, None] @ v).squeeze(1), weights


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_module_that_keeps_what_it_computes_is_copied() -> None:
    example = (torch.randn(3, 16), torch.randn(3, 9, 12))
    found = attnbench.check(Normed(16, 12), example=example, profile="quick", invariants=FEW)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Pointer(nn.Module):
    """Its output is weights times a projection of the memory."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.spots = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, state: Tensor, spots: Tensor) -> tuple[Tensor, Tensor]:
        own = self.spots(spots)
        weights = (own @ self.state(state).unsqueeze(-1)).squeeze(-1).softmax(-1)
        return (weights[:, None] @ own).squeeze(1), weights


class Broadcast(nn.Module):
    """Additive weights that other axes give, too, as they broadcast."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.score = nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, memory: Tensor, query: Tensor) -> Tensor:
        scores = self.score((self.one(query).unsqueeze(1) + memory).tanh()).squeeze(-1)
        return scores.softmax(1).unsqueeze(1)


def test_an_example_is_called_in_axes_that_it_has() -> None:
    spec = example_spec(Broadcast(), (torch.randn(3, 9, 16), torch.randn(3, 16)))
    assert "called with memory (B, S, E), query (B, E)" in " ".join(spec.notes)


class Unset(nn.Module):
    """It leaves its weights to the model around it, and checks a number that is no size."""

    def __init__(self, dim: int, method: str, conv_kernel_size: int = 201) -> None:
        super().__init__()
        if conv_kernel_size % 2 != 1 or method not in ("left", "right"):
            raise ValueError("a kernel is odd")
        self.project = nn.utils.skip_init(nn.Linear, dim, dim)

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert query.dim() == 3
        return (self.project(query) @ key.mT).softmax(-1) @ value


def test_weights_that_nothing_initialises_are_drawn_and_defaults_that_are_no_size_stay() -> None:
    spec = spec_of(Unset)
    found = attnbench.check(spec, profile="quick", invariants=FEW)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


NONE = torch.empty(0)


class Relative(nn.Module):
    """Its window is a number, and its default of positions one with which no call works."""

    def __init__(self, n_feat: int, window_size: int) -> None:
        super().__init__()
        self.pos, self.size = nn.Linear(n_feat, n_feat), window_size + 1

    def forward(self, query: Tensor, key: Tensor, value: Tensor, pos_emb: Tensor = NONE) -> Tensor:
        assert query.dim() == 3
        return (query @ (key + self.pos(pos_emb)).mT).softmax(-1) @ value


def test_a_default_that_no_call_can_do_with_is_replaced() -> None:
    spec = spec_of(Relative)
    assert "always pos_emb=0.5 (B, S, E)" in " ".join(spec.notes)
    found = attnbench.check(spec, profile="quick", invariants=FEW[:2])
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Numbered(nn.Module):
    """A step whose number nobody can guess."""

    def forward(
        self, query: Tensor, context: Tensor, step: int, kind: str
    ) -> tuple[Tensor, Tensor]:
        assert (step + 1, kind) == (4, "dot")
        weights = (query @ context.mT).softmax(-1)
        return weights @ context, weights


def test_a_call_may_say_constants() -> None:
    spec = spec_of(Numbered, prior=prior_of("step=3, kind='dot')"))
    assert "always step=3, kind='dot'" in " ".join(spec.notes)
    with pytest.raises(StyleError, match="no argument 'stop'"):
        spec_of(Numbered, prior=prior_of("stop=3)"))


class Sharded(nn.Module):
    """A layer that asks in its constructor how many processes there are."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, dim // torch.distributed.get_world_size())

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        assert query.dim() == 3
        return self.out((query @ key.mT).softmax(-1) @ value)


def test_process_groups_that_a_constructor_asks_for_are_of_one_process() -> None:
    try:
        said = " ".join(spec_of(Sharded).notes)
    finally:
        torch.distributed.destroy_process_group()
    assert "the parallel groups that it asks for are of one process" in said


class Tacotron(nn.Module):
    """Its keys are projected beforehand, and earlier weights come in two rows through a kernel."""

    def __init__(self, rnn_dim: int, embedding_dim: int, n_filters: int, kernel_size: int) -> None:
        super().__init__()
        self.query_layer = nn.Linear(rnn_dim, embedding_dim)
        self.memory_layer = nn.Linear(embedding_dim, embedding_dim)
        padding = (kernel_size - 1) // 2
        self.conv = nn.Conv1d(2, n_filters, kernel_size, padding=padding)
        self.located, self.score = nn.Linear(n_filters, embedding_dim), nn.Linear(embedding_dim, 1)

    def forward(
        self,
        attention_hidden_state: Tensor,
        memory: Tensor,
        processed_memory: Tensor,
        attention_weights_cat: Tensor,
        mask: Tensor,
    ) -> tuple[Tensor, Tensor]:
        own = self.query_layer(attention_hidden_state.unsqueeze(1)) + processed_memory
        energies = self.score((own + self.located(self.conv(attention_weights_cat).mT)).tanh())
        weights = energies.squeeze(-1).masked_fill(mask, -torch.inf).softmax(-1)
        return (weights[:, None] @ memory).squeeze(1), weights


def test_keys_projected_beforehand_and_weights_in_two_rows_are_given() -> None:
    found = attnbench.check(spec_of(Tacotron), profile="quick", invariants=FEW[:2])
    assert (
        "processed_memory=memory_layer(memory), attention_weights_cat=1/S (B, 2, S)"
        in (found.about[0])
    )
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Kept(nn.Module):
    """It projects its keys once, and keeps them until it is reset."""

    def __init__(self, enc_dim: int, dec_dim: int) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(enc_dim, 8), nn.Linear(dec_dim, 8)
        self.reset()

    def reset(self) -> None:
        self.keys: Tensor | None = None

    def forward(
        self, enc_states: Tensor, enc_len: Tensor, dec_states: Tensor
    ) -> tuple[Tensor, Tensor]:
        if self.keys is None:
            self.keys = self.enc(enc_states)
            self.seen = torch.arange(enc_states.shape[1]) < enc_len[:, None]
        scores = (self.keys @ self.dec(dec_states).unsqueeze(-1)).squeeze(-1)
        weights = scores.masked_fill(~self.seen, -torch.inf).softmax(-1)
        return (weights[:, None] @ enc_states).squeeze(1), weights


def test_what_a_module_keeps_between_calls_is_reset_and_that_is_said() -> None:
    found = attnbench.check(spec_of(Kept), profile="quick", invariants=FEW)
    assert "prepared by reset" in found.about[0]
    assert "enc_len (B,), lengths" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Unweighted(nn.Module):
    """A query over other keys, of which no weights are given."""

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(query_dim, query_dim), nn.Linear(key_dim, query_dim)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        assert query.dim() == 3
        own = self.two(key)
        return (self.one(query) @ own.mT).softmax(-1) @ own


def test_a_query_over_other_keys_without_weights_is_a_layer_over_a_memory() -> None:
    spec = spec_of(Unweighted)
    assert isinstance(spec, attnbench.LayerSpec)
    assert spec.accepts == ("source",)


class ContextOnly(nn.Module):
    """A step of a decoder that gives the context alone."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = nn.Linear(2 * dim, 1)

    def forward(self, hidden_state: Tensor, encoder_outputs: Tensor) -> Tensor:
        items, slots, _ = encoder_outputs.size()
        states = hidden_state.unsqueeze(1).repeat(1, slots, 1)
        scores = self.score(torch.cat((encoder_outputs, states), 2).tanh()).view(items, slots)
        return (scores.softmax(1)[:, None] @ encoder_outputs).squeeze(1)


def test_a_step_that_gives_no_weights_is_checked_by_its_context() -> None:
    example = (torch.randn(4, 16), torch.randn(4, 8, 16))
    for spec in (spec_of(ContextOnly), example_spec(ContextOnly(16), example)):
        found = attnbench.check(spec, profile="quick", invariants=FEW)
        assert "encoder_outputs (B, S, E); no weights are found" in found.about[0]
        assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Narrowed(Pointer):
    """Its context is projected to the features of the state, which are fewer."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.spots = nn.Linear(10, 16), nn.Linear(16, 16)
        self.out = nn.Linear(16, 10)

    def forward(self, state: Tensor, spots: Tensor) -> tuple[Tensor, Tensor]:
        context, weights = super().forward(state, spots)
        return self.out(context), weights


def test_what_gives_other_features_than_its_memory_has_is_checked_as_it_is() -> None:
    example = (torch.randn(3, 10), torch.randn(3, 9, 16))
    names = ["gradients_reach_every_parameter", "keeps_the_contract", "autocast_agrees"]
    found = attnbench.check(Narrowed(), example=example, profile="quick", invariants=names)
    assert "its output is more than weights times memory" in found.about[0]
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)


class Crossing(nn.Module):
    """A layer over a second sequence whose items are the second axis, and which starts at zero."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(width, 2)
        nn.init.zeros_(self.attend.out_proj.weight)

    def forward(self, tgt: Tensor, memory: Tensor, pos: Tensor | None = None) -> Tensor:
        keys = memory if pos is None else memory + pos
        return tgt + self.attend(tgt, keys, memory)[0]


def test_a_second_sequence_of_an_example_is_one_also_where_weights_start_at_zero() -> None:
    example = (torch.randn(10, 2, 16), torch.randn(15, 2, 16))
    spec = example_spec(Crossing(16), example)
    assert "called with tgt (L, B, E), memory (S, B, E)" in " ".join(spec.notes)
    names = ["keeps_the_contract", "items_are_independent"]
    found = attnbench.check(spec, profile="quick", invariants=names)
    assert {outcome.status for outcome in found.outcomes} == {"passed"}, str(found)
