"""A linear map whose owner draws its weights."""

from __future__ import annotations

from torch import nn

__all__ = ["Projection"]


class Projection(nn.Linear):
    """``nn.Linear`` without a bias, which leaves its weight ``(out, in)`` to whoever made it.

    torch's own draw takes as long as all else in making a module, and would be drawn over.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Nothing: the owner does."""
