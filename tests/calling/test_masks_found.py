"""Masks as small calls show them: what hides too little, what is added, what has other axes."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnbench_plugins.adapters.adaptation import spec_of

import attnbench
from attnbench.errors import StyleError
from attnbench.specs import LayerSpec, MechanismSpec
from tests.attention_functions import statuses
from tests.calling.sources import found

MASKED = '''
class Valued(nn.Module):
    """Its mask hides values, and leaves the keys in the sums."""
    def __init__(self, dim, heads):
        super().__init__()
        self.qkv = nn.Linear(dim, 3 * dim)
    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        if mask is not None:
            v = v * mask[..., None]
        return (q @ k.mT / 8).softmax(-1) @ v

class Behind(Valued):
    """Its mask comes behind the softmax, where causality hides it from padding at the right."""
    def forward(self, x, mask=None):
        q, k, v = self.qkv(x).chunk(3, -1)
        later = torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        weights = (q @ k.mT / 8).masked_fill(later, -math.inf).softmax(-1)
        return (weights if mask is None else weights * mask[:, None]) @ v

class Handing(Valued):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)

class Added(nn.Module):
    """Its mask is added to scores, which have to keep their dtype."""
    def forward(self, query, key, value, attn_bias=None):
        scores = query @ key.mT / query.shape[-1] ** 0.5
        if attn_bias is not None:
            scores = scores + attn_bias
        return scores.softmax(-1) @ value

class Graph(nn.Module):
    """Of the nodes of one graph (L, E), with a mask (L, L) that is added."""
    def __init__(self, dim):
        super().__init__()
        self.turned, self.one, self.two = nn.Linear(dim, dim), nn.Linear(dim, 1), nn.Linear(dim, 1)
    def forward(self, x, mask):
        nodes = self.turned(x.view(-1, x.shape[-1]))
        scores = F.leaky_relu(self.one(nodes) + self.two(nodes).mT, 0.2)
        return (scores + mask).softmax(-1) @ nodes

class Rows(nn.Module):
    """Of aligned sequences (R, L, B, E), whose padding is (B, R, L)."""
    def __init__(self, dim, heads):
        super().__init__()
        self.qkv, self.heads = nn.Linear(dim, 3 * dim), heads
    def forward(self, x, padding_mask=None):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, -1))
        scores = torch.einsum("rinhd,rjnhd->hnij", q, k)
        if padding_mask is not None:
            scores = scores.masked_fill(padding_mask[:, 0].unsqueeze(0).unsqueeze(2), -1e4)
        return torch.einsum("hnij,rjnhd->rinhd", scores.softmax(-1), v).flatten(-2)

class Tiled(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.out = nn.Linear(dim, dim)
    def forward(self, x, H, W):
        q = self.out(x).reshape(x.shape[0], H, W, -1).flatten(1, 2)
        return F.scaled_dot_product_attention(q, x, x)

class Projecting(nn.Module):
    """Gives its weights, and a context that a layer makes; no key left is the mean of the keys."""
    def __init__(self, dim):
        super().__init__()
        self.score, self.out = nn.Linear(dim, 1, bias=False), nn.Linear(dim, dim, bias=False)
    def forward(self, hid, ctx, ctx_mask=None):
        scores = self.score(torch.tanh(ctx + hid)).squeeze(-1)
        if ctx_mask is not None:
            scores = scores.masked_fill((1 - ctx_mask).bool(), -1e8)
        alpha = scores.softmax(0)
        return alpha, self.out((alpha.unsqueeze(-1) * ctx).sum(0))

class Slots(nn.Module):
    """Keeps a key of its own, so that no query is without one."""
    def __init__(self, dim):
        super().__init__()
        self.slot = nn.Parameter(torch.randn(1, dim))
    def forward(self, query, key, value, attn_mask=None):
        slot = self.slot.expand(*key.shape[:-2], 1, -1)
        scores = query @ torch.cat([key, slot], -2).mT / query.shape[-1] ** 0.5
        if attn_mask is not None:
            hidden = F.pad(~attn_mask, (0, 1), value=False)
            scores = scores.masked_fill(hidden, -math.inf)
        return scores.softmax(-1) @ torch.cat([value, slot], -2)
'''


@pytest.mark.parametrize("name", ["Valued", "Handing", "Behind"])
def test_a_mask_that_hides_too_little_is_said_and_fails(tmp_path: Path, name: str) -> None:
    target = found(tmp_path, MASKED, name)
    names = ["left_padding_is_inert" if name == "Behind" else "padded_tokens_are_inert"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"failed"}, str(report)
    told = "mask (B, L), True may attend but **a hidden slot keeps "
    assert any(told in line for line in report.about), report.about


def test_a_mask_that_is_added_has_the_dtype_of_the_query(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, MASKED, "Added"))
    assert isinstance(spec, MechanismSpec)
    assert spec.dtypes is None
    assert spec.conventions["masks"] == ("boolean", "floating")


def test_a_mask_of_one_sequence_is_found(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, MASKED, "Graph"))
    assert isinstance(spec, LayerSpec)
    assert spec.notes[0] == "called with x (L, E); mask (L, L), added to the scores"
    names = ["padded_tokens_are_inert", "items_are_independent"]
    report = attnbench.check(spec, profile="quick", invariants=names, dtypes=["float32"])
    assert set(statuses(report).values()) == {"passed"}, str(report)


def test_four_axes_that_are_no_grid_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StyleError, match="an item changes with the others"):
        spec_of(found(tmp_path, MASKED, "Rows"))


def test_sizes_that_a_call_passes_are_named(tmp_path: Path) -> None:
    spec = spec_of(found(tmp_path, MASKED, "Tiled"))
    assert isinstance(spec, LayerSpec)
    said = "called with x (B, L, E); by its tokens: H as rows, W as columns"
    assert spec.notes[0] == said


@pytest.mark.parametrize("name", ["Projecting", "Slots"])
def test_a_row_without_keys_that_no_convention_describes_is_said_and_not_accused(
    tmp_path: Path, name: str
) -> None:
    target = found(tmp_path, MASKED, name)
    names = ["empty_rows_give_zeros"]
    report = attnbench.check(target, profile="quick", invariants=names, dtypes=["float32"])
    assert report.ok, str(report)
    assert any("a row without keys gives is not looked at" in line for line in report.about)
