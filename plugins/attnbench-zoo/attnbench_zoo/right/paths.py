"""Right layers that can be asked in two ways, append trees, or lie on a grid."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import CacheSpec, LayerSpec
from attnbench.testing import scaled_dot_rows
from attnbench_zoo.right.heads import mapped


class Latent(nn.Module):
    """Causal attention whose cache has latents; keys are expanded from them, or absorbed."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, narrow = size, max(1, size // 2)
        self.query, self.down = nn.Linear(size, size), nn.Linear(size, narrow)
        self.up_key = nn.Linear(narrow, size, bias=False)
        self.up_value = nn.Linear(narrow, size, bias=False)

    def latents(self, hidden: Tensor, cache: Any) -> Tensor:
        """Those of the cache and the new ones."""
        found: Tensor = self.down(hidden)
        if cache is not None:
            found = cache.latents = torch.cat([cache.latents, found], 1)
        return found

    def weights(self, scores: Tensor, seen: Tensor | None = None) -> Tensor:
        """Softmax of causal scores."""
        q_len, kv_len = scores.shape[-2:]
        causal = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
        scores = scores * self.size**-0.5
        return scores.masked_fill(~(causal if seen is None else seen), -torch.inf).softmax(-1)

    def forward(self, hidden: Tensor, cache: Any = None, seen: Tensor | None = None) -> Tensor:
        """Keys and values expanded."""
        latents = self.latents(hidden, cache)
        key, value = self.up_key(latents), self.up_value(latents)
        return self.weights(self.query(hidden) @ key.mT, seen) @ value

    def absorbed(self, hidden: Tensor, cache: Any = None) -> Tensor:
        """Projections absorbed by query and output."""
        latents = self.latents(hidden, cache)
        query = self.query(hidden) @ self.up_key.weight
        output: Tensor = self.up_value(self.weights(query @ latents.mT) @ latents)
        return output

    def recurrent(self, hidden: Tensor, cache: Any = None) -> Tensor:
        """Token by token."""
        cache = _new(self, hidden.shape[0]) if cache is None else cache
        outputs = [self(token, cache) for token in hidden.split(1, 1)]
        return torch.cat(outputs, 1) if outputs else hidden

    def tree(self, parents: Tensor, past: int) -> Tensor:
        """Which slots the tokens of a tree see, ``(L, S)``."""
        seen = torch.eye(len(parents), dtype=torch.bool)
        for token, parent in enumerate(parents.tolist()):
            if parent >= 0:
                seen[token] |= seen[parent]
        return torch.cat([torch.ones(len(parents), past, dtype=torch.bool), seen], 1)


def _append_tree(module: Latent, hidden: Tensor, cache: Any, parents: Tensor) -> Tensor:
    output: Tensor = module(hidden, cache, module.tree(parents, cache.latents.shape[1]))
    return output


def _new(module: Any, batch_size: int) -> Any:
    empty = module.down.weight.new_zeros(batch_size, 0, module.down.out_features)
    return SimpleNamespace(latents=empty)


def _keep(cache: Any, latents: Tensor) -> None:
    cache.latents = latents


def _rows(module: Latent, hidden: list[list[float]], real: list[bool]) -> list[list[float]]:
    """The output in Python floats, expanded."""
    latents = mapped(module.down, hidden)
    keys, values = mapped(module.up_key, latents), mapped(module.up_value, latents)
    seen = [[j <= i for j in range(len(hidden))] for i in range(len(hidden))]
    return scaled_dot_rows(None, mapped(module.query, hidden), keys, values, seen)


LATENT = LayerSpec(
    name="latent",
    make=Latent,
    causal=True,
    accepts=("cache",),
    cache=CacheSpec(
        new=_new,
        select=lambda cache, index: _keep(cache, cache.latents[index]),
        crop=lambda cache, length: _keep(cache, cache.latents[:, :length]),
        length=lambda cache: int(cache.latents.shape[1]),
        append_tree=_append_tree,
    ),
    laws=("chunked_equals_recurrent", "absorbed_equals_expanded"),
    paths={
        "chunked_equals_recurrent": ("forward", "recurrent"),
        "absorbed_equals_expanded": ("forward", "absorbed"),
    },
    reference=_rows,
)


class Axial(nn.Module):
    """Attention along the rows of a grid and along its columns, with the same projections."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)

    def along(self, grid: Tensor) -> Tensor:
        """Attention among the tokens of each row."""
        query, key, value = self.qkv(grid).chunk(3, -1)
        return (query * query.shape[-1] ** -0.5 @ key.mT).softmax(-1) @ value

    def forward(self, grid: Tensor) -> Tensor:
        """Output ``(B, H, W, E)``."""
        return self.along(grid) + self.along(grid.transpose(1, 2)).transpose(1, 2)


AXIAL = LayerSpec(name="axial", make=Axial, grid=True, laws=("transposes_with_the_grid",))
