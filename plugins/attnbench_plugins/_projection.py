"""A linear map whose weight is initialised by the module that owns it."""

from __future__ import annotations

from torch import nn


class Projection(nn.Linear):
    """``nn.Linear`` without a bias, whose weight ``(out, in)`` is left uninitialised.

    torch's own initialisation takes as long as everything else in creating a module, and would be
    overwritten.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__(in_features, out_features, bias=False)

    def reset_parameters(self) -> None:
        """Do nothing; the owner initialises the weight."""
