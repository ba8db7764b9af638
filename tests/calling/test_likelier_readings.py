"""Of several ways to call that run, the one that its author means."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.adaptation import spec_of
from attnbench_plugins.adapters.examples import example_spec
from attnbench_plugins.adapters.making.recipes import recipe_of
from attnbench_plugins.adapters.refusing import Raised, not_called

import attnbench
from attnbench.calling.importing import load
from attnbench.calling.signature import Argument
from attnbench.errors import StyleError
from tests.attention_functions import statuses
from tests.calling.conftest import written
from tests.calling.sources import found

READ = '''
from typing import Optional
from torch.overrides import handle_torch_function, has_torch_function

class Energy(nn.Module):
    """Its state is of one step: with more axes it runs by broadcasting alone."""
    def __init__(self, hidden):
        super().__init__()
        self.a, self.b = nn.Linear(hidden, hidden), nn.Linear(hidden, hidden)
        self.v = nn.Linear(hidden, 1, bias=False)
    def forward(self, decoder_state, encoder_outputs):
        both = self.a(encoder_outputs) + self.b(decoder_state).unsqueeze(1)
        return self.v(both.tanh()).squeeze(-1)

class OnAGrid(nn.Module):
    """Three integers, which it hands back, say how its tokens lie: they are no second sequence."""
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x, thw_shape):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj((q @ k.mT * x.shape[-1] ** -0.5).softmax(-1) @ v), thw_shape

class CausalByName(OnAGrid):
    def forward(self, x):
        return super().forward(x, None)[0]

class CausalByFlag(CausalByName):
    def forward(self, x, padding_mask=None, is_causal=True):
        return super().forward(x)

class ChannelsFirst(nn.Module):
    """Tokens come first, channels of its output do, and its mask has an axis at its end."""
    def __init__(self, size):
        super().__init__()
        self.query, self.key = nn.Linear(size, size), nn.Linear(size, size)
    def forward(self, queries, keys, values, mask):
        q, k = self.query(queries).transpose(0, 1), self.key(keys).transpose(0, 1)
        scores = (q @ k.mT).masked_fill(mask.transpose(1, 2), -float("inf"))
        weights = scores.softmax(2)
        return (weights @ values.transpose(0, 1)).transpose(1, 2), weights

class Stepping(Energy):
    """The number of the step is not read."""
    def forward(self, encoder_seq_proj, query, t):
        return super().forward(query, encoder_seq_proj).softmax(1)

class Hiding(nn.Module):
    """Its mask of what is hidden is needed: where all is, nothing is a number."""
    def __init__(self, x_size, y_size):
        super().__init__()
        self.linear = nn.Linear(y_size, x_size)
    def forward(self, memory, query, x_mask):
        scores = (memory @ self.linear(query).unsqueeze(2)).squeeze(2)
        return scores.masked_fill(x_mask, -math.inf).softmax(-1)

class Kept(nn.Module):
    """Its mask of ones and zeros becomes one that is added."""
    def __init__(self, hidden):
        super().__init__()
        self.qkv = nn.Linear(hidden, 3 * hidden)
    def forward(self, x, attention_mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        if attention_mask is not None:
            scores = scores + (1.0 - attention_mask.unsqueeze(1)) * -1e9
        return scores.softmax(-1) @ v

class Worded(Kept):
    """Its mask is a word."""
    def forward(self, x, mask: Optional[str] = None):
        return super().forward(x)

class Turned(Kept):
    """Angles are needed, and are given by name."""
    def forward(self, x, position_embeddings, padding=None):
        cos, sin = position_embeddings
        if padding is not None:
            padding = (~padding).float()
        return super().forward(x * cos + x.roll(1, -1) * sin, padding)

class Channels(nn.Module):
    """Both its sequences have their features before their tokens."""
    def __init__(self, channels):
        super().__init__()
        self.q, self.k = (nn.Conv1d(channels, channels, 1) for _ in range(2))
    def forward(self, x, c):
        return self.k(c) @ (self.q(x).mT @ self.k(c)).softmax(-1).mT

class Tabled(nn.Module):
    """A table has a row for each token."""
    def __init__(self, dim, n=49):
        super().__init__()
        self.table, self.qkv = nn.Parameter(torch.zeros(n, n)), nn.Linear(dim, 3 * dim)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return (q @ k.mT + self.table.view(1, x.shape[1], -1)).softmax(-1) @ v

class Faint(nn.Module):
    """Weights that start near zero make all scores alike, whatever they are divided by."""
    def __init__(self, dim, num_heads):
        super().__init__()
        self.heads, self.qkv, self.out = num_heads, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.gamma = nn.Parameter(1e-5 * torch.ones(dim))
        self.scale = nn.Parameter(torch.full((num_heads, 1, 1), 0.125))
        for part in (self.qkv, self.out):
            nn.init.normal_(part.weight, std=0.001)
    def forward(self, x):
        parts = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        q, k, v = (t.transpose(1, 2) for t in parts)
        mixed = (q @ k.mT * self.scale).softmax(-2) @ v
        return self.out(mixed.transpose(1, 2).flatten(2)) * self.gamma

class Processed(Energy):
    """Keys that are projected are the only ones."""
    def forward(self, query, processed_memory):
        return super().forward(query, processed_memory)

class Weighed(nn.Module):
    """Of heads, whose mask of numbers is that of an item."""
    def forward(self, Q, K, V, mask):
        scores = Q / Q.shape[-1] ** 0.5 @ K.mT
        return (scores - 1e6 * (1 - mask[:, None, None, :])).softmax(-1) @ V

class Viewing(nn.Module):
    """Its state is of one layer, and its memory is seen as rows."""
    def __init__(self, dim):
        super().__init__()
        self.one, self.two = nn.Linear(dim, dim), nn.Linear(dim, dim)
    def forward(self, memory, state):
        keys = self.one(memory.view(-1, memory.shape[2])).view(memory.shape)
        return (keys @ self.two(state.squeeze(0)).unsqueeze(2)).squeeze(2).softmax(1)

class Listed(nn.Module):
    """Its lengths are a list."""
    def forward(self, memory, lengths, query):
        seen = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
        weights = (memory @ query.unsqueeze(2)).squeeze(2).masked_fill(~seen, -math.inf).softmax(1)
        return (memory * weights.unsqueeze(2)).sum(1), weights

class Required(Kept):
    """It cannot do without a mask."""
    def forward(self, x, mask):
        return super().forward(x, (mask == 1).float())

class Receiving(nn.Module):
    """Its receiver has the name of a state."""
    def forward(s, query, memory):
        weights = (memory @ query.unsqueeze(-1)).softmax(1)
        return (weights * memory).sum(1)

def attend(query, key, value, size=None):
    if has_torch_function((query, key, value)):
        return handle_torch_function(attend, (query, key, value), query, key, value)
    return (query / size**0.5 @ key.mT).softmax(-1) @ value

class Leaving(nn.Module):
    """Its constructor leaves where it does not know a number."""
    def __init__(self, dim, mode, causal):
        super().__init__()
        self.proj = nn.Linear(dim, dim) if mode in (0, 1) and causal is False else exit(0)
    def forward(self, x):
        return (self.proj(x) @ x.mT).softmax(-1) @ x

class Recurrent(nn.Module):
    """Its weights come before what a recurrence over its queries gives."""
    def __init__(self, dim):
        super().__init__()
        self.gru = nn.GRU(dim, dim, batch_first=True)
    def forward(self, inputs, memory):
        outputs, state = self.gru(inputs)
        return (outputs @ memory.mT).softmax(-1), outputs, state

class Swallowed(nn.Module):
    """What is added to its scores leaves nothing of them in float32, and something in float64."""
    def forward(self, query, key, value, mask=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        return (scores if mask is None else scores + mask * -1e9).softmax(-1) @ value

class Unread(nn.Module):
    """Its interface has a state, which it never reads."""
    def __init__(self, dim):
        super().__init__()
        self.one = nn.Linear(dim, dim)
    def forward(self, query, state, memory):
        weights = (memory @ self.one(query).unsqueeze(2)).squeeze(2).softmax(1)
        return (weights.unsqueeze(1) @ memory).squeeze(1), weights

class Overridable(nn.Module):
    """What stands for tensors of other kinds lacks a size."""
    def forward(self, query, key, value):
        return attend(query, key, value, size=query.shape[-1])
'''


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Energy", "decoder_state (B, E), encoder_outputs (B, S, E)"),
        ("Stepping", "encoder_seq_proj (B, S, E), query (B, E); always t=0"),
        ("Hiding", "x_mask (B, S), True hides"),
        ("Kept", "attention_mask (B, L), 1 may attend"),
        ("Channels", "x (B, E, L), c (B, E, S)"),
        ("Tabled", "x (B, L, E); L = 49 only"),
        ("Processed", "query (B, E), processed_memory (B, S, E)"),
        ("Weighed", "mask (B, S), 1 may attend"),
        ("Viewing", "memory (B, S, E), state (1, B, E)"),
        ("Leaving", "called with x (B, L, E)"),
        ("Recurrent", "called with inputs (B, L, E), memory (B, S, E)"),
        ("Unread", "called with query (B, E), memory (B, S, E); always state=None"),
        ("Receiving", "called with query (B, E), memory (B, S, E)"),
        ("Worded", "left at their defaults: mask"),
        ("Turned", "padding (B, L), True hides; by its tokens: position_embeddings as rotary"),
    ],
)
def test_the_first_line_says_what_is_meant(tmp_path: Path, name: str, said: str) -> None:
    spec = spec_of(found(tmp_path, READ, name))
    assert said in spec.notes[0]


@pytest.mark.parametrize(
    "name", ["Kept", "Overridable", "Weighed", "Viewing", "Recurrent", "Swallowed"]
)
def test_what_is_right_is_not_accused(tmp_path: Path, name: str) -> None:
    names = ["agrees_with_float64", "masked_slots_are_inert", "padded_tokens_are_inert"]
    names += ["empty_rows_give_zeros", "queries_permute_freely", "source_is_that_of_the_item"]
    report = attnbench.check(found(tmp_path, READ, name), profile="quick", invariants=names)
    assert report.ok, str(report)


def test_weights_that_start_near_zero_are_made_larger(tmp_path: Path) -> None:
    """Else a softmax over the queries would look like one of scores that are scaled by 1.2."""
    spec = spec_of(found(tmp_path, READ, "Faint"))
    assert "weights that start near zero are larger" in spec.notes
    assert not any("softmax" in note or "q·k" in note for note in spec.notes)
    module = spec.make(16).callee
    assert 0.1 < module.qkv.weight.std().item() < 0.2
    assert module.gamma.min().item() > 0.5
    assert module.scale.max().item() == 0.125, "a factor may be small by design"


@pytest.mark.parametrize("items", [4, 6])
def test_a_step_that_gives_its_context_alone_is_an_example(tmp_path: Path, items: int) -> None:
    def step(state: Any, outputs: Any) -> Any:
        weights = (outputs @ state.unsqueeze(-1)).softmax(1)
        return (weights * outputs).sum(1)

    for called in (step, found(tmp_path, READ, "Receiving")()):
        spec = example_spec(called, (torch.randn(items, 40), torch.randn(items, 15, 40)))
        assert "(B, E), " in spec.notes[0]
    example = torch.randn(items, 40), torch.randn(items, 15, 40)
    assert example_spec(lambda query, memory: step(query, memory), example).name == "lambda"


def test_a_second_sequence_that_is_none_by_name_changes_the_output(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, READ, "OnAGrid"))
    assert spec.notes[0] == "called with x (B, L, E); always thw_shape=None"
    assert "source" not in spec.accepts


def test_channels_of_an_output_may_come_before_tokens(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, READ, "ChannelsFirst"))
    assert "mask (B, S, 1), True hides" in spec.notes[0]
    report = attnbench.check(spec, profile="quick", invariants=["pools_values"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_sides_of_an_example_may_be_wider_and_are_never_left_at_their_defaults() -> None:
    def cross(query: Any, key: Any = None, value: Any = None) -> Any:
        key, value = query if key is None else key, query if value is None else value
        both = query[..., :24] @ key[..., :24].mT
        return both.softmax(-1) @ value

    example = torch.randn(2, 9, 48), torch.randn(2, 13, 72), torch.randn(2, 13, 36)
    spec = example_spec(cross, example)
    assert "key (B, S, E), value (B, S, E)" in spec.notes[0]
    assert "keys have 72 features where queries have 48" in spec.notes


@pytest.mark.parametrize("name", ["CausalByName", "CausalByFlag"])
def test_a_causal_class_that_is_not_is_told_of_and_fails_if_it_should_be(
    tmp_path: Path, name: str
) -> None:
    notes = spec_of(found(tmp_path, READ, name)).notes
    assert "**not causal, though it says so** (found by trying)" in notes
    address = f"{tmp_path}/{name.lower()}_net.py:{name} with causal=always"
    report = attnbench.check(address, profile="quick", invariants=["later_tokens_are_invisible"])
    assert set(statuses(report).values()) == {"failed"}


def test_what_a_user_called_a_mask_and_hides_nothing_is_refused(tmp_path: Path) -> None:
    found(tmp_path, READ, "CausalByFlag")
    address = f"{tmp_path}/causalbyflag_net.py:CausalByFlag as called(x=hidden, padding_mask=mask)"
    with pytest.raises(StyleError, match="padding_mask alone hides nothing"):
        attnbench.check(address)


def test_a_softmax_in_float32_is_found_where_no_weights_are_given() -> None:
    def attention(query: Any, key: Any, value: Any) -> Any:
        scores = (query / query.shape[-1] ** 0.5) @ key.mT
        return scores.float().softmax(-1).to(query.dtype) @ value

    spec = spec_of(attention)
    assert spec.conventions["internal_dtype"] == "float32"
    report = attnbench.check(spec, profile="quick", invariants=["keys_permute_freely"])
    assert set(statuses(report).values()) == {"passed"}, str(report)
    exact = spec_of(lambda query, key, value: (query @ key.mT).softmax(-1) @ value)
    assert "internal_dtype" not in exact.conventions


def test_a_list_of_lengths_has_one_for_each_query(tmp_path: Path) -> None:
    example = (torch.randn(3, 14, 24), [14, 10, 7], torch.randn(3, 24))
    spec = example_spec(found(tmp_path, READ, "Listed")(), example)
    names = ["keeps_the_contract", "weights_sum_to_one", "query_alone_equals_query_among_others"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_a_mask_that_an_example_has_to_give_is_found_as_one(tmp_path: Path) -> None:
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    module = found(tmp_path, READ, "Required")(32)
    spec = example_spec(module, (torch.randn(2, 9, 32), mask))
    assert spec.notes[0] == "called with x (B, L, E); mask (B, L), True may attend"
    assert not any("in the example" in note or "hides all" in note for note in spec.notes)
    turned = example_spec(module, (torch.randn(2, 9, 32), ~mask))
    assert "**the example's mask hides all from an item**" in turned.notes


def test_an_example_of_a_class_is_told_to_be_one_of_an_instance(tmp_path: Path) -> None:
    kind = found(tmp_path, READ, "Required")
    for target in (kind, recipe_of(kind)):
        with pytest.raises(StyleError, match="Required is a class, and an example is a call of"):
            example_spec(target, torch.randn(2, 9, 32))


def test_scores_of_a_module_are_asked_at_its_own_size(tmp_path: Path) -> None:
    module = found(tmp_path, READ, "Energy")(32)
    spec = example_spec(module, (torch.randn(6, 32), torch.randn(6, 9, 32)))
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert report.ok, str(report)


def test_nodes_that_know_nothing_of_each_other_keep_their_order_and_are_causal() -> None:
    def pooled(nodes: Any, edges: Any) -> Any:
        return ((nodes.unsqueeze(2) * edges).sum(-1, keepdim=True).softmax(2) * edges).sum(2)

    example = torch.randn(2, 11, 16), torch.randn(2, 11, 7, 16)
    report = attnbench.check(
        pooled, example=example, profile="quick", invariants=["later_tokens_are_invisible"]
    )
    assert set(statuses(report).values()) == {"passed"}
    assert any("no token reaches another" in line for line in report.about)
    assert not any("another order" in line or "not causal" in line for line in report.notes)


def test_a_folder_without_init_is_the_package_that_its_file_takes_it_for(repository: Path) -> None:
    written(repository / "models/parts/sizes.py", "HEADS = 2\n")
    written(repository / "models/deep/beside.py", "SIDES = 3\n")
    text = "from beside import SIDES\n\nfrom ..parts.sizes import HEADS\n"
    module = load(written(repository / "models/deep/made.py", text))
    assert (module.HEADS, module.SIDES) == (2, 3)


def test_a_call_that_was_tried_is_not_proposed() -> None:
    named = [Argument("v", "value"), Argument("q", "query")]
    assert '--call "f(v=..., q=...)"' in not_called(None, named, [])


def test_a_constant_that_was_said_is_not_asked_for() -> None:
    said = Argument("test", None, given=(True,))
    raised = [Raised("BLE: TypeError: of a call without keys"), Raised("BLE, BSE: TypeError: no")]
    raised[0].reached, raised[1].reached = 8, 9
    text = not_called(None, [Argument("q", "query"), Argument("k", "key"), said], raised)
    assert "raises TypeError: no, given (B, L, E) and (B, S, E)" in text
    assert "what test should be" not in text
    assert "test=True" in text
