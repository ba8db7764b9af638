"""Positions of a layer: none, a learned vector, a rotation, or a penalty on distance.

Positions count from a sequence's first real token, so padding on the left does not move them.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Positions(nn.Module):
    """No positions: only the causal mask distinguishes tokens (Haviv et al. 2022, 2203.16634).

    Args:
        size: E of the hidden states.
        heads: number of heads.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add positions ``(B or 1, L)`` to hidden states ``(B, L, E)``."""
        return hidden

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """Rotate queries or keys ``(B, H, L, D)`` by their positions ``(B or 1, L)``."""
        return tensor

    def bias(self, distance: Tensor) -> Tensor | None:
        """The bias ``(H, L, S)`` of scores at distances ``(L, S)``, in float32; ``None`` for 0."""
        return None


class Learned(Positions):
    """A learned vector per position, added to the hidden state (Gehring et al. 2017, 1705.03122).

    Args:
        size, heads: as of :class:`Positions`.
        most: number of positions.
    """

    def __init__(self, size: int, heads: int, most: int = 4096) -> None:
        super().__init__(size, heads)
        self.table = nn.Parameter(torch.empty(most, size))
        nn.init.normal_(self.table, std=0.5)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Add the vectors of positions ``(B or 1, L)`` to hidden states ``(B, L, E)``.

        Raises:
            IndexError: a position is beyond the table.
        """
        return hidden + self.table[positions]


class Rotary(Positions):
    """Rotate pairs of features by an angle that grows with the position (Su et al. 2021)."""

    base = 10000.0

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """Rotate feature i with feature i + D / 2, in float32 or wider."""
        wide = tensor.to(torch.promote_types(tensor.dtype, torch.float32))
        half = tensor.shape[-1] // 2
        steps = torch.arange(half, dtype=wide.dtype, device=wide.device) / half
        angle = positions[:, None, :, None] * self.base**-steps
        cos, sin = angle.cos(), angle.sin()
        a, b = wide[..., :half], wide[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(tensor.dtype)


class Alibi(Positions):
    """A penalty that grows with the distance, faster in the first heads (Press et al. 2021)."""

    def bias(self, distance: Tensor) -> Tensor:
        """The bias ``(H, L, S)``: minus the distance times head i's slope, ``2^(-8 i / H)``."""
        heads = torch.arange(1, self.heads + 1, device=distance.device, dtype=torch.float32)
        return -distance * torch.exp2(-8 * heads / self.heads)[:, None, None]
