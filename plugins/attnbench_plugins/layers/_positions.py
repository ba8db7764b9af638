"""How a layer knows where a token is: by nothing, a learned vector, a rotation, or a distance.

Positions are counted from a sequence's first real token, so padding on its left moves none.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["Alibi", "Learned", "Positions", "Rotary"]


class Positions(nn.Module):
    """No positions: what is hidden alone tells tokens apart (Haviv et al. 2022, 2203.16634).

    Args:
        size: E of the hidden states.
        heads: how many heads there are.
    """

    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Hidden states ``(B, L, E)`` that know their positions ``(B or 1, L)``."""
        return hidden

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """Queries or keys ``(B, H, L, D)`` that know their positions."""
        return tensor

    def bias(self, distance: Tensor) -> Tensor | None:
        """What is added to scores ``(H, L, S)`` at distances ``(L, S)``, in float32."""
        return None


class Learned(Positions):
    """A learned vector a position, added to the hidden state (Gehring et al. 2017, 1705.03122).

    Args:
        most: how many positions there are.
    """

    def __init__(self, size: int, heads: int, most: int = 4096) -> None:
        super().__init__(size, heads)
        self.table = nn.Parameter(torch.empty(most, size))
        nn.init.normal_(self.table, std=0.5)

    def embed(self, hidden: Tensor, positions: Tensor) -> Tensor:
        """Hidden states plus the vectors of their positions.

        Raises:
            IndexError: a position is beyond the table.
        """
        return hidden + self.table[positions]


class Rotary(Positions):
    """Pairs of features turned by an angle that grows with the position (Su et al. 2021)."""

    base = 10000.0

    def turn(self, tensor: Tensor, positions: Tensor) -> Tensor:
        """The first half of the features is turned into the second; in float32 at least."""
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
        """Minus the distance times a slope a head, ``2^(-8 i / H)``."""
        heads = torch.arange(1, self.heads + 1, device=distance.device, dtype=torch.float32)
        return -distance * torch.exp2(-8 * heads / self.heads)[:, None, None]
