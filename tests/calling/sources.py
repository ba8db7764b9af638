"""Attention as people write it, as the text of files."""

from pathlib import Path
from typing import Any

from attnbench.calling.importing import load

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
    def forward(self, k, v, q, d_k, mask=None, e=1e-12):
        scores = q @ k.transpose(-1, -2) / math.sqrt(d_k)
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

STEPS = '''
class Joined(nn.Module):
    """Of a state and an encoder of two directions, in one row."""
    def __init__(self, enc_dim, dec_dim):
        super().__init__()
        self.both, self.one = nn.Linear(2 * enc_dim + dec_dim, dec_dim), nn.Linear(dec_dim, 1)
    def forward(self, state, encoder_outputs):
        rows = torch.cat([state.expand(len(encoder_outputs), -1, -1), encoder_outputs], -1)
        return self.one(self.both(rows).tanh()).squeeze(-1).softmax(0).T

class Even(nn.Module):
    """As many features of a state as of outputs, in one row."""
    def __init__(self, dim):
        super().__init__()
        self.both, self.one = nn.Linear(2 * dim, dim), nn.Linear(dim, 1, bias=False)
    def forward(self, hidden, encoder_outputs):
        rows = [hidden.unsqueeze(1).expand(-1, encoder_outputs.shape[1], -1), encoder_outputs]
        weights = self.one(self.both(torch.cat(rows, -1)).tanh()).squeeze(-1).softmax(-1)
        return (weights.unsqueeze(1) @ encoder_outputs).squeeze(1), weights

class Keyed(nn.Module):
    """Its keys are mapped to its queries, and may have other features."""
    def __init__(self, hidden_size, key_size):
        super().__init__()
        self.key = nn.Linear(key_size, hidden_size, bias=False)
    def forward(self, query, values):
        weights = (query @ self.key(values).mT).softmax(-1)
        return weights @ values, weights

class Halved(Joined):
    """With a formula of its own from 9 keys on."""
    def forward(self, state, encoder_outputs):
        state = state if len(encoder_outputs) < 9 else state / 2
        return super().forward(state, encoder_outputs)

class Captioning(nn.Module):
    """Its memory comes first, and has other features than its state."""
    def __init__(self, regions, hidden, between):
        super().__init__()
        self.a, self.b = nn.Linear(regions, between), nn.Linear(hidden, between)
        self.c = nn.Linear(between, 1)
    def forward(self, spots, word):
        weights = self.c((self.a(spots) + self.b(word).unsqueeze(1)).relu()).squeeze(2).softmax(1)
        return (spots * weights.unsqueeze(2)).sum(1), weights
'''

PROJECTED = '''
class Named(nn.Module):
    """Heads behind projections that have usual names."""
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(dim, dim), nn.Dropout(0.0))
    def parted(self, t):
        return t.unflatten(-1, (self.heads, -1)).transpose(1, 2)
    def scale(self, d, dim):
        return d**-0.5
    def forward(self, x, mask=None):
        q, k, v = (self.parted(each(x)) for each in (self.to_q, self.to_k, self.to_v))
        scores = q @ k.mT * self.scale(q.shape[-1], x.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, None], -math.inf)
        weights = scores.softmax(getattr(self, "axis", -1))
        return self.to_out((weights @ v).transpose(1, 2).reshape(x.shape))

class Across(Named): axis = -2

class Dimmed(Named):
    """Its scale is of all features, where a head has a part of them."""
    def scale(self, d, dim):
        return dim**-0.5

class Later(Named):
    """With another scale from 9 tokens on."""
    def forward(self, x, mask=None):
        self.length = x.shape[1]
        return super().forward(x, mask)
    def scale(self, d, dim):
        return d**-0.5 if self.length < 9 else 0.5 * d**-0.5

class Cut(Named):
    def forward(self, x, length=None):
        return super().forward(x, torch.arange(x.shape[1]) < length[:, None])

class Reshaped(Named):
    """Its heads are cut across the tokens."""
    def parted(self, t):
        return t.reshape(t.shape[0], self.heads, t.shape[1], -1)

class Fused(nn.Module):
    """Causal, with one projection whose parts lie by head."""
    def __init__(self, dim, n_head):
        super().__init__()
        self.n_head, self.qkv, self.proj = n_head, nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (self.n_head, -1)).transpose(1, 2).chunk(3, -1)
        y = F.scaled_dot_product_attention(*parts, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))

class Held(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, batch_first=True)
    def forward(self, x):
        return self.inner(x, x, x)[0]
'''


def found(folder: Path, text: str, name: str) -> Any:
    """What a file with this text has under a name."""
    path = folder / f"{name.lower()}_net.py"
    path.write_text(HEAD + text)
    return getattr(load(str(path)), name)
