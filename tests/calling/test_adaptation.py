"""What small calls show of code that people have: source text, and what is found."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.calling.adaptation import bound, callee_of, spec_of
from attnbench.calling.binding import Binding
from attnbench.calling.importing import load
from attnbench.calling.making import recipe_from, recipe_of
from attnbench.errors import StyleError
from attnbench.specs import LayerSpec, MechanismSpec, ScoringSpec
from tests.attention_functions import statuses

WRITTEN = "Causal(types.SimpleNamespace(**dict(n_head=1, n_embd=E)))"
HEAD = """
import math
import torch
from torch import nn
from torch.nn import functional as F
"""

SCORED = '''
class Additive(nn.Module):
    """One decoder state over encoder outputs; gives weights, of which 0 in the mask hides."""
    def __init__(self, vector_dim, matrix_dim):
        super().__init__()
        self.w = nn.Linear(vector_dim, 16, bias=False)
        self.u = nn.Linear(matrix_dim, 16, bias=False)
        self.v = nn.Linear(16, 1, bias=False)
    def forward(self, vector, matrix, matrix_mask=None):
        scores = self.v(torch.tanh(self.w(vector).unsqueeze(1) + self.u(matrix))).squeeze(-1)
        if matrix_mask is not None:
            scores = scores.masked_fill(~matrix_mask, -math.inf)
        return scores.softmax(-1)

class Wrong(Additive):
    """Another formula from 9 keys on."""
    def forward(self, vector, matrix, matrix_mask=None):
        vector = vector if matrix.shape[1] < 9 else 1.5 * vector
        return super().forward(vector, matrix, matrix_mask)

class Biased(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w, self.u, self.v = nn.Linear(dim, dim), nn.Linear(dim, dim), nn.Linear(dim, 1)
    def forward(self, query, keys):
        scores = self.v(torch.tanh(self.w(query)[:, None] + self.u(keys))).squeeze(-1)
        return scores.softmax(-1)

class Sined(Biased):
    """Of no formula that is known."""
    def forward(self, query, keys):
        return self.v((self.w(query)[:, None] + self.u(keys)).sin()).squeeze(-1).softmax(-1)

class Luong(nn.Module):
    """State (1, B, E) over outputs (S, B, E); gives the context and the weights."""
    def __init__(self, method, hidden_size):
        super().__init__()
        self.general = nn.Linear(hidden_size, hidden_size)
    def forward(self, hidden, encoder_outputs):
        scores = (self.general(encoder_outputs) * hidden).sum(-1).T
        weights = scores.softmax(-1)
        return (weights.unsqueeze(1) @ encoder_outputs.transpose(0, 1)).squeeze(1), weights

class Kept(nn.Module):
    """Keeps its projected keys, and needs a mask."""
    def __init__(self, hidden_size, key_size, query_size):
        super().__init__()
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.query = nn.Linear(query_size, hidden_size, bias=False)
        self.proj_keys = None
    def compute_proj_keys(self, keys):
        self.proj_keys = self.key(keys)
    def forward(self, query, mask, values):
        scores = self.query(query) @ self.proj_keys.transpose(1, 2)
        weights = scores.masked_fill(~mask, -math.inf).softmax(-1)
        return weights @ values, weights

class Unnormalised(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.w = nn.Linear(dim, dim, bias=False)
    def forward(self, matrix_1, matrix_2):
        return self.w(matrix_1) @ matrix_2.transpose(-1, -2)

class Hides(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim
    def forward(self, k, v, q, mask=None, e=1e-12):
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.dim)
        if mask is not None:
            scores = scores.masked_fill(mask, -1e9)
        return scores.softmax(-1) @ v

class Plain(nn.Module):
    """Named as in textbooks; where its mask is True, it hides."""
    def __init__(self, dim):
        super().__init__()
        self.root = math.sqrt(dim)
    def forward(self, query, key, value, mask=None):
        scores = torch.bmm(query, key.transpose(1, 2)) / self.root
        if mask is not None:
            scores.masked_fill_(mask.view(scores.size()), -math.inf)
        weights = scores.softmax(-1)
        return torch.bmm(weights, value), weights

class Unscaled(nn.Module):
    def __init__(self, hidden_dim):
        super().__init__()
    def forward(self, query, value):
        weights = torch.bmm(query, value.transpose(1, 2)).softmax(-1)
        return torch.bmm(weights, value), weights

class Normed(nn.Module):
    """A sublayer: its query is added to its output, which is normed."""
    def __init__(self, d_model):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        self.norm = nn.LayerNorm(d_model, eps=1e-6)
    def forward(self, q, k, v, mask=None):
        scores = self.q(q) @ self.k(k).mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.norm(self.out(scores.softmax(-1) @ self.v(v)) + q)

class Tempered(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature
    def forward(self, q, k, v, mask=None):
        scores = q / self.temperature @ k.transpose(2, 3)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return scores.softmax(-1) @ v
'''

LAYERS = '''
class Config:
    pass

class Causal(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)
    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)
                   for t in self.qkv(x).chunk(3, -1))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)

class Sequence(nn.Module):
    """(L, B, E), and a mask of padding in which True hides."""
    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead)
    def forward(self, src, src_key_padding_mask=None, pos=None):
        return src + self.attn(src, src, src, key_padding_mask=src_key_padding_mask)[0]

class Logits(nn.Module):
    """Three times as many features, a flag that it needs, and a mask that changes nothing."""
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, 3 * dim)
    def forward(self, x, use_cache, attn_mask=None):
        assert not use_cache
        return self.out(F.scaled_dot_product_attention(x, x, x))

class Cross(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads, batch_first=True)
    def forward(self, x, context=None):
        context = x if context is None else context
        return self.attn(x, context, context)[0]

class Flagged(Cross):
    """What its mask holds is not read."""
    def forward(self, x, context, mask=None):
        q, k = x.unsqueeze(1), context.unsqueeze(1)
        return F.scaled_dot_product_attention(q, k, k, is_causal=mask is not None).squeeze(1)

class Ignoring(Cross):
    def forward(self, x, context=None):
        return self.attn(x, x, x)[0]

def precompute_freqs_cis(dim, end):
    angles = torch.outer(torch.arange(end).float(), 100.0 ** (-torch.arange(0, dim, 2) / dim))
    return torch.polar(torch.ones_like(angles), angles)

class Multiplied(nn.Module):
    """Linear attention, multiplied by its normaliser instead of divided."""
    def __init__(self, dim):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("bld,ble->blde", k, v).cumsum(1)
        total = (q * k.cumsum(1)).sum(-1, keepdim=True)
        return torch.einsum("bld,blde->ble", q, state) * total

class Rotary(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.head_dim = n_heads, dim // n_heads
        self.qkv = nn.Linear(dim, 3 * dim)
    def forward(self, x, freqs_cis, mask=None):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
                   for t in self.qkv(x).chunk(3, -1))
        def turned(t):
            z = torch.view_as_complex(t.float().unflatten(-1, (-1, 2)))
            return torch.view_as_real(z * freqs_cis).flatten(-2).type_as(t)
        out = F.scaled_dot_product_attention(turned(q), turned(k), v, attn_mask=mask)
        return out.transpose(1, 2).flatten(2)

class Window(nn.Module):
    """Windows of 7 by 7 tokens, which it insists on."""
    def __init__(self, dim, window_size=7):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(window_size**2, window_size**2))
    def forward(self, x):
        return F.scaled_dot_product_attention(x, x, x, attn_mask=self.bias)

class Pool(nn.Module):
    """One state of an image, by its mean."""
    def __init__(self, spacial_dim, embed_dim):
        super().__init__()
        self.places = nn.Parameter(torch.randn(spacial_dim**2 + 1, embed_dim))
    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        x = torch.cat([x.mean(1, keepdim=True), x], 1) + self.places
        return F.scaled_dot_product_attention(x[:, :1], x, x).squeeze(1)

class Only(Cross):
    """Its flag is not to be set, and no name says what its second sequence is."""
    def __init__(self, dim, heads, only_cross=False):
        super().__init__(dim, heads)
        assert not only_cross
    def forward(self, x, frames):
        return super().forward(x, frames)

class Keeping(Causal):
    """Writes its keys into a cache of its own, where they keep their graph."""
    def __init__(self, config):
        super().__init__(config)
        self.cache = None
    def kept(self, x):
        return x
    def forward(self, x):
        if self.cache is None or len(self.cache) != len(x):
            self.cache = x.new_zeros(len(x), 64, x.shape[-1])
        self.cache[:, : x.shape[1]] = self.qkv(x)[..., : x.shape[-1]]
        keys = self.cache[:, : x.shape[1]].clone()
        self.cache = self.kept(self.cache)
        return F.scaled_dot_product_attention(x, keys, keys, is_causal=True)

class Detaching(Keeping):
    def kept(self, x):
        return x.detach()

class Block(Cross):
    """Reads its second sequence where it is made so."""
    def __init__(self, dim, heads, cross_attention=False):
        super().__init__(dim, heads)
        self.cross = cross_attention
    def forward(self, x, context=None):
        return super().forward(x, context if self.cross else None)

class Alone(nn.Module):
    """One sequence (L, E), without items."""
    def __init__(self, d_in, d_out):
        super().__init__()
        self.qkv = nn.Linear(d_in, 3 * d_out)
    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        assert x.dim() == 2
        return (q @ k.T).softmax(-1) @ v
'''


def found(folder: Path, text: str, name: str):  # type: ignore[no-untyped-def]
    path = folder / f"{name.lower()}_net.py"
    path.write_text(HEAD + text)
    return getattr(load(str(path)), name)


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
    said = "always use_cache=False; left at their defaults: attn_mask; no form found of attn_mask"
    assert said in spec.notes[0]
    assert "its output of 3·E features is folded to E" in spec.notes
    many = Binding(shape="layer", layout="BLE", roles={"x": "hidden"}, left=("dropped",) * 30)
    assert many.sentence() == "called with x (B, L, E); more arguments stand below"
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
    assert not spec.causal
    assert any(note.startswith("no token reaches another") for note in spec.notes)


def test_a_second_sequence_that_changes_nothing_is_said(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, LAYERS, "Ignoring"))
    assert isinstance(spec, LayerSpec)
    assert "source" not in spec.accepts  # as where a module was made without cross-attention
    assert "**changes no output**: context" in spec.notes[0]


def test_what_gives_scores_is_a_scoring_function(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, SCORED, "Unnormalised"))
    assert isinstance(spec, ScoringSpec)
    module = spec.make(8, 8)
    assert module(torch.randn(2, 3, 8), torch.randn(2, 5, 8)).shape == (2, 3, 5)


def test_what_fits_no_call_is_refused_with_what_was_tried(tmp_path: Path) -> None:
    target = found(tmp_path, "def attend(q, k, v): raise RuntimeError('a gate is shut')", "attend")
    with pytest.raises(StyleError, match=r"attend cannot be called: (.|\n)*a gate is shut"):
        spec_of(target)


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
