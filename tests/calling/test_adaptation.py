"""What small calls show of code that people have: source text, and what is found."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from attnbench_plugins.adapters.adaptation import callee_of, spec_of
from attnbench_plugins.adapters.binding import Binding
from attnbench_plugins.adapters.making.recipes import recipe_from, recipe_of
from attnbench_plugins.adapters.trials import formulas
from attnbench_plugins.adapters.trials.fitting import bound
from attnbench_plugins.adapters.trials.small_calls import Calls
from torch import nn

import attnbench
from attnbench.checking.gaps import gaps_of
from attnbench.errors import StyleError
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec
from attnbench.subject.lookup import resolve
from tests.attention_functions import statuses
from tests.calling.sources import LAYERS, PROJECTED, SCORED, STEPS, found

SOURCE = {"formula": "", "source": ""}
WRITTEN = "Causal(types.SimpleNamespace(**dict(n_head=1, n_embd=E)))"


@pytest.mark.parametrize(
    ("text", "name", "shape", "layout", "memory", "masks"),
    [
        (SCORED, "Additive", "memory", "BE", "BSE", {"matrix_mask": ("BS", "shows")}),
        (SCORED, "Luong", "memory", "BE", "SBE", {}),
        (SCORED, "Kept", "memory", "BLE", "BSE", {"mask": ("BLS", "shows")}),
        (SCORED, "Unnormalised", "scores", "BHLE", "BHSE", {}),
        (SCORED, "Hides", "attention", "BHLE", "BHSE", {"mask": ("BHLS", "hides")}),
        (LAYERS, "Causal", "layer", "BLE", "", {}),
        (LAYERS, "Sequence", "layer", "LBE", "", {"src_key_padding_mask": ("BS", "hides")}),
        (LAYERS, "Cross", "layer", "BLE", "BSE", {}),
        (LAYERS, "Flagged", "layer", "BLE", "BSE", {}),
        (LAYERS, "Rotary", "layer", "BLE", "", {"mask": ("B11S", "shows")}),
        (LAYERS, "Alone", "layer", "LE", "", {}),
        (LAYERS, "Window", "layer", "BLE", "", {}),
        (LAYERS, "Pool", "layer", "BEL", "", {}),
        (LAYERS, "Block", "layer", "BLE", "BSE", {}),
        (LAYERS, "Only", "layer", "BLE", "BSE", {}),
    ],
)
def test_how_it_is_called_is_found_by_names_and_small_calls(
    tmp_path: Path,
    text: str,
    name: str,
    shape: str,
    layout: str,
    memory: str,
    masks: dict[str, tuple[str, str]],
) -> None:
    cls = found(tmp_path, text, name)
    _, binding = bound(cls, callee_of(cls, recipe_of(cls)))
    assert (binding.shape, binding.layout, binding.memory) == (shape, layout, memory)
    assert {name: (mask.axes, mask.says) for name, mask in binding.masks.items()} == masks
    assert len(binding.sentence()) <= 160


def test_what_a_mask_means_is_not_told_by_names(tmp_path: Path) -> None:
    names = ["masking_equals_deleting", "masked_slots_are_inert", "keeps_the_contract"]
    target = found(tmp_path, SCORED, "Plain")
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"passed"}, str(report)
    assert "mask (B, L, S), True hides" in report.about[0]


@pytest.mark.parametrize(("name", "status"), [("Unscaled", "passed"), ("Plain", "failed")])
def test_what_nobody_scales_is_not_asked_to_scale_before_the_product(
    tmp_path: Path, name: str, status: str
) -> None:
    target = found(tmp_path, SCORED, name)
    names = ["agrees_with_float64", "finite_at_extremes", "weights_sum_to_one"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float16"])
    assert set(statuses(report).values()) == {status}, str(report)


def test_conventions_are_found_and_not_failed(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, SCORED, "Hides"))
    assert isinstance(spec, MechanismSpec)
    assert spec.conventions["mask_value"] == pytest.approx(-1e9, rel=0.02)
    assert spec.conventions["masks"] == ("boolean",)
    names = ["masking_equals_deleting", "masked_slots_are_inert", "keeps_the_contract"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_a_norm_behind_the_output_hides_no_convention(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, SCORED, "Normed"))
    assert isinstance(spec, MechanismSpec)
    assert spec.conventions["mask_value"] == -999_999.0  # the least of what has parameters
    names = ["every_attendable_key_matters", "hidden_keys_stay_hidden_at_extreme_scores"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert "failed" not in statuses(report).values(), str(report)


def test_a_formula_that_is_that_of_scaled_dot_products_is_held_to_it(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, SCORED, "Tempered"))
    assert spec.reference is not None
    assert spec.conventions["mask_value"] == -1e9


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Additive", "it computes additive: w_vᵀ tanh(W_q q + W_k k)"),
        ("Biased", "it computes additive: w_vᵀ tanh(W_q q + W_k k), with w.bias and u.bias"),
        ("Luong", "it computes dot: qᵀk, of projected keys"),
        ("Unscaled", "it computes dot: qᵀk"),
        ("Sined", "no reference: a wrong but self-consistent formula would pass"),
    ],
)
def test_the_formula_that_it_computes_is_found_and_said(
    tmp_path: Path, name: str, said: str
) -> None:
    spec = spec_of(found(tmp_path, SCORED, name))
    assert isinstance(spec, MechanismSpec)
    assert said in spec.notes  # type: ignore[attr-defined]
    assert ("no reference" in said) == (spec.reference is None)


@pytest.mark.parametrize(("name", "status"), [("Biased", "passed"), ("Wrong", "failed")])
def test_it_is_held_to_its_formula_at_other_sizes(tmp_path: Path, name: str, status: str) -> None:
    target = found(tmp_path, SCORED, name)
    names = ["agrees_with_scalar_reference"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float64"])
    assert set(statuses(report).values()) == {status}, str(report)


@pytest.mark.parametrize(("name", "status"), [("Joined", "passed"), ("Halved", "failed")])
def test_an_encoder_of_two_directions_has_twice_as_many_features(
    tmp_path: Path, name: str, status: str
) -> None:
    spec = spec_of(found(tmp_path, STEPS, name))
    assert isinstance(spec, MechanismSpec)
    told = "; ".join(spec.notes)  # type: ignore[attr-defined]
    assert "called with state (B, E), encoder_outputs (S, B, E)" in told
    assert "keys have 32 features where queries have 16" in told
    assert "it computes additive: w_vᵀ tanh(W_q q + W_k k), with both.bias" in told
    names = ["agrees_with_scalar_reference"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float64"])
    assert set(statuses(report).values()) == {status}, str(report)


def test_keys_that_are_mapped_may_have_other_features(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, STEPS, "Keyed"))
    assert spec.reference is not None
    names = ["agrees_with_scalar_reference"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float64"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_the_additive_score_of_one_row_is_found(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, STEPS, "Even"))
    told = "; ".join(spec.notes)
    assert "it computes additive: w_vᵀ tanh(W_q q + W_k k), with both.bias" in told


@pytest.mark.parametrize(
    ("name", "status"),
    [(name, "passed") for name in ("Named", "Fused", "Held")]
    + [("Later", "failed"), ("Across", "failed")],
)
def test_a_layer_is_held_to_the_softmax_behind_its_projections(
    tmp_path: Path, name: str, status: str
) -> None:
    spec = spec_of(found(tmp_path, PROJECTED, name))
    assert isinstance(spec, LayerSpec)
    said = {
        "Later": "it computes softmax(q·k / √d) v{}, but not among 40 tokens: is that meant?",
        "Across": "its softmax is over the queries, not the keys,{}",
    }.get(name, "it computes softmax(q·k / √d) v{}")
    assert said.format(" behind its projections") in spec.notes
    names = ["layer_agrees_with_reference"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {status}, str(report)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Dimmed", "its scores are 0.7071 times q·k / √d behind its projections: is that meant?"),
        ("Reshaped", "with its tokens in another order, its outputs are off by "),
    ],
)
def test_what_no_file_declares_is_asked_with_numbers(tmp_path: Path, name: str, said: str) -> None:
    spec = spec_of(found(tmp_path, PROJECTED, name))
    assert isinstance(spec, LayerSpec)
    assert spec.reference is None
    assert any(note.startswith(said) for note in spec.notes)


def test_a_search_ends_after_so_many_calls() -> None:
    def spread(a: int, b: int, c: int, attn_mask: int = 0) -> None:
        raise ValueError(len((a, b, c, attn_mask)))

    callee = callee_of(spread, None)
    with pytest.raises(StyleError, match="cannot be called: of "):
        bound(spread, callee)
    assert 10_000 < callee.spent < 10_500


def test_the_one_of_two_arguments_that_no_name_tells_is_the_other_side(tmp_path: Path) -> None:
    cls = found(tmp_path, STEPS.replace("word", "st").replace("spots", "enc"), "Captioning")
    _, binding = bound(cls, callee_of(cls, recipe_of(cls)))
    assert binding.roles == {"enc": "memory", "st": "query"}
    assert (binding.layout, binding.memory) == ("BE", "BSE")


def test_a_layer_is_said_to_be_causal_and_what_is_left_alone_is_named(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, LAYERS, "Causal"))
    assert isinstance(spec, LayerSpec)
    assert spec.causal
    assert "causal (found by trying)" in spec.notes
    left = spec_of(found(tmp_path, LAYERS, "Sequence"))
    assert "left at their defaults: pos" in left.notes[0]


@pytest.mark.parametrize(("name", "tokens"), [("Window", 9), ("Pool", 9)])
def test_a_number_of_tokens_that_it_insists_on_is_found_and_kept(
    tmp_path: Path, name: str, tokens: int
) -> None:
    spec = spec_of(found(tmp_path, LAYERS, name))
    assert isinstance(spec, LayerSpec)
    assert spec.tokens == tokens
    assert f"L = {tokens} only" in spec.notes[0]
    names = ["items_are_independent", "outputs_depend_on_their_token", "keeps_the_contract"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


@pytest.mark.parametrize(("name", "status"), [("Keeping", "failed"), ("Detaching", "passed")])
def test_a_module_is_also_trained_as_it_stands(tmp_path: Path, name: str, status: str) -> None:
    target = found(tmp_path, LAYERS, name)
    names = ["training_steps_follow_each_other"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {status}, str(report)


@pytest.mark.parametrize(("name", "is_said"), [("Multiplied", True), ("Rotary", False)])
def test_that_weights_may_not_sum_to_one_is_said_of_a_layer(
    tmp_path: Path, name: str, is_said: bool
) -> None:
    spec = spec_of(found(tmp_path, LAYERS, name))
    assert isinstance(spec, LayerSpec)
    assert any("where all tokens are alike" in note for note in spec.notes) == is_said


def test_what_nothing_varies_is_named(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, LAYERS, "Logits"))
    assert isinstance(spec, LayerSpec)
    said = "always use_cache=False; **no mask"
    assert said in spec.notes[0]
    assert "its output of 3·E features is folded to E" in spec.notes
    many = Binding(shape="layer", layout="BLE", roles={"x": "hidden"}, left=("dropped",) * 30)
    assert many.sentence() == "called with x (B, L, E); more arguments follow"
    assert many.rest() == (f"left at their defaults: {', '.join(many.left)}",)


ZEROS = """
class Zeros(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        nn.init.zeros_(self.out.weight)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return x + self.out(F.scaled_dot_product_attention(q, k, v))

class Alone(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)
    def forward(self, x):
        return x + self.out(x)
"""


def test_a_projection_that_starts_at_zero_hides_nothing(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, ZEROS, "Zeros"))
    assert isinstance(spec, LayerSpec)
    assert not spec.causal


def test_what_mixes_no_tokens_is_not_called_causal(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, ZEROS, "Alone"))
    assert isinstance(spec, LayerSpec)
    assert spec.causal, "no later token reaches an earlier one"
    assert any(note.startswith("no token reaches another") for note in spec.notes)
    assert not any(note.startswith("causal") for note in spec.notes)
    assert not any("cache" in gap.what for gap in gaps_of(*resolve(spec)))


def test_a_second_sequence_that_changes_nothing_is_said(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, LAYERS, "Ignoring"))
    assert isinstance(spec, LayerSpec)
    assert "source" not in spec.accepts  # as where a module was made without cross-attention
    assert "**changes no output**: context" in spec.notes[0]


def test_a_mask_that_a_module_keeps_and_nobody_sets_is_told_of(tmp_path: Path) -> None:
    text = """class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = None
    def forward(self, query, key, value):
        return (query @ key.mT).softmax(-1) @ value"""
    assert "its own mask is None in every call" in spec_of(found(tmp_path, text, "Kept")).notes


def test_what_gives_scores_is_a_scoring_function(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, SCORED, "Unnormalised"))
    assert isinstance(spec, ScoringSpec)
    module = spec.make(8, 8)
    assert module(torch.randn(2, 3, 8), torch.randn(2, 5, 8)).shape == (2, 3, 5)
    report = attnbench.check(spec, profile="quick", invariants=["keeps_the_contract"])
    assert "Unnormalised: called with " in report.about[0]


def test_what_fits_no_call_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    target = found(tmp_path, "def attend(q, k, v): raise RuntimeError('a gate is shut')", "attend")
    with pytest.raises(StyleError, match=r"attend cannot be called: (.|\n)*a gate is shut"):
        spec_of(target)
    text = "class Shut(torch.nn.Module):\n    def forward(self, q, k, v): raise E"
    with pytest.raises(StyleError, match=r"\nIt was made by Shut\(\); --make"):
        spec_of(found(tmp_path, text, "Shut"))


def test_a_required_argument_that_is_no_tensor_of_the_call_is_none(tmp_path: Path) -> None:
    text = """def step(s_t, h, total):
    weights = (h @ s_t[..., None]).squeeze(-1).softmax(-1)
    return (weights[:, None] @ h).squeeze(1), weights if total is None else weights / total"""
    assert "always total=None" in spec_of(found(tmp_path, text, "step")).notes[0]


def test_how_it_was_imported_and_made_is_told_of_what_is_found_and_of_what_somebody_wrote(
    tmp_path: Path,
) -> None:
    cls = found(tmp_path, "import nowhere_at_all\n" + LAYERS, "Causal")
    for target, made in (cls, "E"), (recipe_from(WRITTEN, cls), "dict(n_head=1, "):
        spec = spec_of(target)
        assert isinstance(spec, LayerSpec)
        notes = "; ".join(spec.notes)
        assert "called with x (B, L, E)" in notes
        assert "not installed, and stubbed: nowhere_at_all" in notes
        assert "made by Causal(" in notes
        assert made in notes.partition("made by")[2]


class Undocumented:
    """A reference that is no function, so that nothing counts its arguments."""

    def __call__(self, module: object, query: list[float], key: list[float]) -> float:
        return 0.0


def raising(query_size: int, key_size: int) -> nn.Module:
    torch.manual_seed(query_size)
    raise RuntimeError("it cannot be made")


def test_a_formula_of_a_plugin_that_cannot_be_tried_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = [
        ScoringSpec(name="odd", make=raising, reference=Undocumented(), **SOURCE),
        ScoringSpec(name="raising", make=raising, reference=lambda m, q, k: 0.0, **SOURCE),
    ]
    own = SimpleNamespace(specs=lambda: [(each.name, each, None) for each in named])
    monkeypatch.setattr(formulas, "registry", lambda: own)
    target = found(tmp_path, SCORED, "Biased")
    callee, binding = bound(target, callee_of(target, recipe_of(target)))
    before = torch.get_rng_state()
    assert formulas.formula_of(Calls(callee, binding)) is None
    assert torch.equal(torch.get_rng_state(), before)


DROPS = """
class Dropping(nn.Module):
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.out, self.drop = nn.Linear(dim, dim), nn.Dropout(dropout)
    def forward(self, query, key, value):
        weights = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1)
        return self.out(self.drop(weights) @ value)

class Always(nn.Module):
    # its dropout acts in evaluation, too
    def __init__(self, dim, dropout=0.1):
        super().__init__()
        self.qkv, self.share = nn.Linear(dim, 3 * dim), dropout
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return F.dropout((q @ k.mT).softmax(-1), self.share) @ v
"""


def test_that_no_dropout_was_looked_at_is_known_of_any_class_that_takes_a_share(
    tmp_path: Path,
) -> None:
    assert spec_of(found(tmp_path, DROPS, "Dropping")).idle_dropout
    assert not spec_of(found(tmp_path, SCORED, "Plain")).idle_dropout


def test_dropout_that_acts_in_evaluation_fails_by_a_line_and_by_an_example(tmp_path: Path) -> None:
    kind = found(tmp_path, DROPS, "Always")
    for target, example in ((kind, None), (kind(16, 0.1), torch.randn(3, 5, 16))):
        report = attnbench.check(
            target, example=example, profile="quick", invariants=["keeps_the_contract"]
        )
        assert "draws random numbers in evaluation" in str(report)
        assert [outcome.status for outcome in report.outcomes] == ["failed"]
