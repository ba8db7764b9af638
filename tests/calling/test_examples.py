"""A module with an example of its call: what is cut from it, what is found, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.examples import example_spec
from torch import Tensor, nn

import attnbench
from attnbench.errors import StyleError
from tests.attention_functions import statuses
from tests.cli_runs import run


class Config:
    """A config that nobody could guess."""

    def __init__(self, wide: int, parts: int) -> None:
        self.wide, self.parts = wide, parts


class Decoder(nn.Module):
    """A causal block that wants angles of its own and gives a tuple."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.parts = config.parts
        self.inward = nn.Linear(config.wide, 3 * config.wide)
        self.outward = nn.Linear(config.wide, config.wide)
        self.drop = nn.Dropout(0.5)

    def forward(self, stream: Tensor, angles: Tensor) -> tuple[Tensor, None]:
        """``(B, L, E)`` and angles ``(L, E)`` to ``((B, L, E), None)``."""
        query, key, value = self.inward(stream * angles.cos()).chunk(3, -1)
        query, key, value = (
            part.unflatten(-1, (self.parts, -1)).transpose(1, 2) for part in (query, key, value)
        )
        output = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.drop(self.outward(output.transpose(1, 2).flatten(2))), None


class Leaky(Decoder):
    """Its items know each other, and its tokens later ones."""

    def forward(self, stream: Tensor, angles: Tensor) -> tuple[Tensor, None]:
        """As of the decoder."""
        return super().forward(stream - stream.mean((0, 1)), angles)


class Model(nn.Module):
    """Token ids to logits, by two blocks."""

    def __init__(self, block: type[Decoder] = Decoder) -> None:
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.attention = nn.ModuleList(block(Config(8, 2)) for _ in range(2))
        self.head = nn.Linear(8, 11)

    def forward(self, ids: Tensor) -> Tensor:
        """``(B, L)`` to ``(B, L, 11)``."""
        hidden = self.words(ids)
        angles = torch.arange(ids.shape[1])[:, None] / 7 + torch.zeros(8)
        for block in self.attention:
            hidden = hidden + block(hidden, angles)[0]
        return self.head(hidden)


STREAM, ANGLES = torch.randn(3, 9, 8), torch.randn(9, 8)
CHEAP = ["later_tokens_are_invisible", "items_are_independent"]


def test_a_module_is_checked_by_one_call_of_it() -> None:
    spec = example_spec(Decoder(Config(8, 2)), (STREAM, ANGLES))
    assert isinstance(spec, attnbench.LayerSpec)
    assert spec.causal
    assert any("angles" in note for note in spec.notes)
    report = attnbench.check(spec, profile="quick", invariants=CHEAP)
    assert report.ok, report


@pytest.mark.parametrize(
    "example",
    [
        ((STREAM, ANGLES), {}),
        ((STREAM,), {"angles": ANGLES}),
        {"stream": STREAM, "angles": ANGLES},
        (STREAM[:1], ANGLES),
        (torch.randn(9, 9, 8), ANGLES),
        (torch.randn(3, 8, 8), ANGLES[:8]),
    ],
)
def test_an_example_may_be_said_in_several_ways_and_have_equal_sizes(example: Any) -> None:
    spec = example_spec(Decoder(Config(8, 2)), example)
    assert isinstance(spec, attnbench.LayerSpec)
    assert spec.causal


def test_what_is_wrong_in_the_module_fails() -> None:
    report = attnbench.check(
        Leaky(Config(8, 2)), example=(STREAM, ANGLES), profile="quick", invariants=CHEAP
    )
    assert [o.invariant for o in report.outcomes if o.status == "failed"] == CHEAP


def test_a_whole_model_is_checked_on_token_ids() -> None:
    model = Model()
    report = attnbench.check(
        model, example=torch.randint(11, (2, 7)), profile="quick", invariants=CHEAP
    )
    assert report.ok, report
    assert model.training


def test_the_attention_in_a_model_is_checked_on_its_calls() -> None:
    batch = torch.randint(11, (2, 7))
    assert attnbench.check_calls(Model(), batch, profile="quick", invariants=CHEAP).ok
    report = attnbench.check_calls(Model(Leaky), batch, profile="quick", invariants=CHEAP)
    assert [o.invariant for o in report.outcomes if o.status == "failed"] == CHEAP
    assert any("attention.0" in line for line in report.about)


def test_each_module_that_is_made_of_an_example_is_a_copy_of_its_own() -> None:
    module = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    names = ["copies_agree", "layer_calls_leave_no_trace", "other_modules_change_nothing"]
    report = attnbench.check(module, example=STREAM, profile="quick", invariants=names)
    assert report.ok, report


def test_attention_with_query_and_key_in_a_model_is_checked_on_its_calls() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.attend = nn.Embedding(11, 8), nn.MultiheadAttention(8, 2)

        def forward(self, ids: Tensor) -> Any:
            hidden = self.words(ids).transpose(0, 1)
            return self.attend(hidden, hidden, hidden)[0]

    report = attnbench.check_calls(
        Tagger(), torch.randint(11, (2, 9)), profile="quick", invariants=["inputs_are_unchanged"]
    )
    assert report.ok, report
    assert "the module attend" in str(report)


def test_hidden_states_that_a_model_changes_in_place_stay_as_they_are() -> None:
    class Scaled(Model):
        def forward(self, ids: Tensor) -> Any:
            hidden = self.words(ids)
            hidden *= 8**0.5
            return self.attention[0](hidden, torch.zeros(ids.shape[1], 8))[0]

    model = Scaled()
    spec = example_spec(model, torch.randint(11, (2, 7)))
    assert spec.name == "Scaled"


def test_the_module_and_the_example_stay_as_they_are() -> None:
    module, stream = Decoder(Config(8, 2)), STREAM.clone()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    attnbench.check(module, example=(stream, ANGLES), profile="quick", invariants=CHEAP)
    assert torch.equal(stream, STREAM)
    assert module.drop.p == 0.5
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ((STREAM,), "does not take its example"),
        ((STREAM, ANGLES[:4]), "raises on its own example: .* at .*test_examples.py:"),
        ((STREAM[:, :3], ANGLES[:3]), "at least 5 tokens"),
        ((STREAM.to("meta"), ANGLES), "on the device meta"),
    ],
)
def test_an_example_that_is_none_is_one_error(example: Any, said: str) -> None:
    with pytest.raises(StyleError, match=said):
        example_spec(Decoder(Config(8, 2)), example)


def test_a_model_without_attention_says_what_to_do() -> None:
    with pytest.raises(StyleError, match=r"attnbench\.check\(model, example=batch\)"):
        attnbench.check_calls(nn.Sequential(nn.Linear(3, 3)), torch.randn(2, 3))


def test_the_command_takes_an_example_by_its_address(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "model = torch.nn.TransformerEncoderLayer(8, 2, batch_first=True)\n"
        "def batch():\n"
        "    return torch.randn(2, 7, 8)\n",
        "utf-8",
    )
    words = ("--invariant", CHEAP[1], "--profile", "quick")
    result = run("check", f"{script}:model", "--example", f"{script}:batch", *words)
    assert result.code == 0, result.out + result.err


class Step(nn.Module):
    """A state of a decoder over a memory with other features, whose names say nothing."""

    def __init__(self, wide: int, spread: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(wide, 12), nn.Linear(spread, 12)

    def forward(self, spots: Tensor, word: Tensor) -> tuple[Tensor, Tensor]:
        """``(B, S, E)`` and ``(B, E)`` to the context ``(B, E)`` and weights ``(B, S)``."""
        weights = (self.two(spots) @ self.one(word).unsqueeze(-1)).squeeze(-1).softmax(-1)
        return (weights.unsqueeze(1) @ spots).squeeze(1), weights


@pytest.mark.parametrize(("items", "slots"), [(3, 7), (4, 9)])
def test_a_step_of_a_decoder_is_an_example(items: int, slots: int) -> None:
    example = torch.randn(items, slots, 24), torch.randn(items, 16)
    spec = example_spec(Step(16, 24), example)
    assert isinstance(spec, attnbench.MechanismSpec)
    names = ["weights_sum_to_one", "keys_permute_freely", "keeps_the_contract"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert {outcome.status for outcome in report.outcomes} == {"passed"}, str(report)
    said = "called with spots (B, S, E), word (B, E); keys have 24 features where queries have 16"
    assert said in report.about[0]


class Sharpened(nn.Module):
    """Scores are multiplied by what comes with each item."""

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, tau: Any = None) -> Tensor:
        """``(B, L, H, E)`` thrice, and ``(B, 1)``."""
        if tau is None:
            raise ValueError("tau is what this is about")
        scores = torch.einsum("blhe,bshe->bhls", queries, keys) * tau[:, None, None]
        return torch.einsum("bhls,bshd->blhd", scores.softmax(-1), values)


def test_what_an_example_gives_by_keyword_is_given_in_every_call_and_said() -> None:
    q, k, v = (torch.randn(3, n, 2, 8) for n in (6, 9, 9))
    spec = example_spec(Sharpened(), ((q, k, v), {"tau": torch.rand(3, 1) + 0.5}))
    assert isinstance(spec, attnbench.MechanismSpec)
    report = attnbench.check(spec, profile="quick", invariants=["keys_permute_freely"])
    assert [outcome.status for outcome in report.outcomes] == ["passed"], str(report)
    assert "held as in the example's first item: tau" in report.about[0]


def related(query: Tensor, key: Tensor, value: Tensor, spots: Tensor) -> Tensor:
    return (query @ key.mT + spots).softmax(-1) @ value


def gated(queries: Tensor, keys: Tensor, values: Tensor, gate: Tensor) -> Tensor:
    scores = torch.einsum("blhe,bshe->bhls", queries, keys) * gate.mT.unsqueeze(-1)
    return torch.einsum("bhls,bshe->blhe", scores.softmax(-1), values)


def linear(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    sums = torch.einsum("bshd,bshe->bhde", keys.sigmoid(), values)
    totals = torch.einsum("blhd,bhd->blh", queries.sigmoid(), keys.sigmoid().sum(1))
    return torch.einsum("blhd,bhde->blhe", queries.sigmoid(), sums) / totals.unsqueeze(-1)


def single(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    bias = torch.zeros(query.shape[-2], key.shape[-2])
    return (query / query.shape[-1] ** 0.5 @ key.mT + bias).softmax(-1) @ value


def crossing(x: Tensor, context: Tensor) -> Tensor:
    return (x @ context[..., 8:].mT).softmax(-1) @ context[..., 8:]


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (related, [(3, 4, 9, 8), (3, 4, 7, 8), (3, 4, 7, 8), (1, 4, 9, 7)]),
        (gated, [*[(3, 10, 4, 8)] * 3, (3, 10, 4)]),
        (single, [(3, 4, 9, 8)] * 3),
        (linear, [(3, 9, 4, 8)] * 3),
        (crossing, [(3, 9, 16), (3, 7, 24)]),
    ],
)
def test_what_belongs_to_heads_tokens_dtypes_or_widths_of_an_example_is_no_fault(
    function: Any, shapes: Any
) -> None:
    example = tuple(torch.randn(*shape) for shape in shapes)
    names = ["keeps_the_contract", "leading_sizes_fold", "queries_permute_freely", *CHEAP]
    names.append("agrees_with_scalar_reference")
    report = attnbench.check(function, example=example, profile="quick", invariants=names)
    assert report.ok, str(report)


def narrow(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q[..., :8] @ k.mT).softmax(-1) @ torch.cat([v, v], -1)


def counted(x: Tensor, rope_count: int) -> Tensor:
    return (x @ x.mT * rope_count).softmax(-1) @ x


def test_keys_of_other_features_and_one_tensor_with_heads_are_read_as_attention() -> None:
    spec = example_spec(narrow, (torch.randn(3, 9, 16), *[torch.randn(3, 7, 8)] * 2))
    assert spec.notes[0] == "called with q (B, L, E), k (B, S, E), v (B, S, E)"
    spec = example_spec(linear, [torch.randn(3, 9, 4, 8)] * 3)
    assert "queries (B, L, H, E), keys (B, S, H, E)" in spec.notes[0]
    spec = example_spec(counted, (torch.randn(3, 9, 16), 2))
    assert "rotary" not in spec.notes[0]


def covered(query: Tensor, memory: Tensor, mask: Tensor, coverage: Tensor) -> Any:
    scores = (memory + query[:, None] + coverage[..., None]).tanh().sum(-1)
    weights = scores.masked_fill(~mask, -1e9).softmax(-1)
    return (weights[:, None] @ memory).squeeze(1), weights


def by_heads(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    q, k, v = (each.unflatten(-1, (4, -1)).transpose(1, 2) for each in (query, key, value))
    return ((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2)


def test_a_coverage_is_equal_for_any_number_of_keys_and_heads_may_pool_their_own_features() -> None:
    mask = torch.arange(7) < torch.tensor([[7], [5], [6]])
    example = torch.randn(3, 16), torch.randn(3, 7, 16), mask, torch.zeros(3, 7)
    names = ["masking_equals_deleting", "masked_slots_are_inert", "weights_sum_to_one"]
    report = attnbench.check(covered, example=example, profile="quick", invariants=names)
    assert set(statuses(report).values()) == {"passed"}, str(report)
    spec = example_spec(by_heads, [torch.randn(3, n, 16) for n in (9, 7, 7)])
    assert "pools_values" not in spec.laws


class Cell(nn.Module):
    """A cell of a decoder: its state is a pair, and its weights (B, S, 1) come with the next."""

    def __init__(self, wide: int, spread: int) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(wide, spread), nn.LSTMCell(spread, wide)

    def forward(self, state: tuple[Tensor, Tensor], spots: Tensor) -> tuple[Any, Tensor]:
        """``(B, E)`` twice and ``(B, S, E)`` to the next pair and weights."""
        weights = (spots @ self.one(state[0]).unsqueeze(-1)).softmax(1)
        return self.two((weights * spots).sum(1), state), weights


class Listed(nn.Module):
    """Its query, key and value come in a list."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(wide, wide), nn.Linear(wide, wide)

    def forward(self, inputs: list[Tensor]) -> Tensor:
        """Three of ``(B, L, E)`` to one."""
        q, k, v = inputs
        return (self.q(q) @ self.k(k).mT / 4).softmax(-1) @ v


def test_a_pair_of_states_and_its_weights_are_read_as_such() -> None:
    pair = torch.randn(3, 12), torch.randn(3, 12)
    spec = example_spec(Cell(12, 16), (pair, torch.randn(3, 9, 16)))
    assert isinstance(spec, attnbench.MechanismSpec)
    report = attnbench.check(spec, profile="quick", invariants=["weights_sum_to_one"])
    assert {outcome.status for outcome in report.outcomes} == {"passed"}, str(report)
    assert "called with state_0 (B, E), spots (B, S, E)" in report.about[0]


def test_tensors_in_a_list_are_arguments() -> None:
    states = torch.randn(3, 9, 16)
    spec = example_spec(Listed(16), ([states, states, states],))
    assert isinstance(spec, attnbench.LayerSpec)
    assert not spec.causal
    said = "called with inputs_0 (B, L, E), inputs_1 (B, L, E), inputs_2 (B, L, E)"
    assert said in "; ".join(spec.notes)
    report = attnbench.check(spec, profile="quick", invariants=CHEAP, dtypes=["float32"])
    assert "failed" not in {outcome.status for outcome in report.outcomes}, str(report)


class Divided(nn.Module):
    """One token, and four of each frame."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        """Attention within each frame."""
        frames = self.value(x)[:, 1:].unflatten(1, (-1, 4))
        return torch.cat([x[:, :1], ((frames @ frames.mT).softmax(-1) @ frames).flatten(1, 2)], 1)


def test_a_number_of_tokens_that_happens_to_be_legal_is_not_taken_for_any() -> None:
    spec = example_spec(Divided(), torch.randn(3, 9, 16))
    assert "L = 9 only" in spec.notes[0]
