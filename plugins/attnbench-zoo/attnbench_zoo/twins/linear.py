"""A layer of linear attention: features of queries and keys instead of a softmax."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor, nn

from attnbench import LayerSpec
from attnbench_zoo.base import Twin
from attnbench_zoo.twins.layers import GROWING, Layer

__all__ = ["LINEAR", "Linear"]


class Linear(Layer):
    """Weights are products of positive features, divided by their sum (Katharopoulos et al. 2020).

    Written with a row of weights for each query, which is what the recurrent form adds up to.
    """

    def turn(self, tensor: Tensor, where: Tensor) -> Tensor:
        """Nothing."""
        return tensor

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, allowed: Tensor, bias: Tensor | None
    ) -> Tensor:
        """Output ``(B, H, L, D)`` of grouped heads; zeros for a query that sees nothing."""
        repeats = self.heads // key.shape[1]
        key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        query, key = self.features(query), self.features(key)
        seen = allowed[:, None].to(query.dtype)
        sums = self.sums(query, key, seen)
        return (query @ key.mT * seen) @ value / sums.masked_fill(sums == 0, 1.0)

    def features(self, tensor: Tensor) -> Tensor:
        """Positive features."""
        return nn.functional.elu(tensor) + 1

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        """What the rows of products are divided by, ``(B, H, L, 1)``."""
        return (query * (seen @ key)).sum(-1, keepdim=True)


assert isinstance(GROWING.spec, LayerSpec)
LINEAR = Twin("linear_layer", replace(GROWING.spec, name="linear_layer", make=Linear))
