"""Linear attention, latents, and attention along the axes of a grid."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.mutants.layers_paths import AXIAL, LATENT, Axial, Latent
from attnbench_zoo.twins.linear import LINEAR, Linear

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_axial = Group(AXIAL, MUTANTS)
_latent = Group(LATENT, MUTANTS)
_linear = Group(LINEAR, MUTANTS)


@_linear("fla-org/flash-linear-attention#594")
class KeysSummedOverHeads(Linear):
    """The normaliser sums the keys over the heads, where it should over the positions."""

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        own = key.cumsum(1)[:, :, key.shape[2] - query.shape[2] :]
        return (query * own).sum(-1, keepdim=True)


@_linear("fla-org/flash-linear-attention#875")
class NormaliserWithoutAGradient(Linear):
    """The sum of keys in the normaliser is taken for a constant by the gradient."""

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        return super().sums(query, key.detach(), seen)


@_linear("fla-org/flash-linear-attention#268")
class NormaliserOfTheCallAlone(Linear):
    """The normaliser of tokens behind a cache sums the keys of their call alone."""

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        past = key.shape[2] - query.shape[2]
        return super().sums(query, key[:, :, past:], seen[..., past:])


@_latent("ollama/ollama#13893")
class AbsorbedScaleOfTheLatents(Latent):
    """Absorbed, the scores are scaled by the width of the latents instead of that of the keys."""

    def absorbed(self, hidden: Tensor, cache: Any = None) -> Tensor:
        latents = self.latents(hidden, cache)
        query = self.query(hidden) @ self.up_key.weight * (self.size / latents.shape[-1]) ** 0.5
        output: Tensor = self.up_value(self.weights(query @ latents.mT) @ latents)
        return output


@_axial("PKU-YuanGroup/Open-Sora-Plan#171")
class ColumnsByAReshape(Axial):
    """Rows become columns by a reshape alone, which gathers tokens of several columns."""

    def forward(self, grid: Tensor) -> Tensor:
        batch, height, width, size = grid.shape
        columns = self.along(grid.reshape(batch, width, height, size))
        return self.along(grid) + columns.reshape(grid.shape)
