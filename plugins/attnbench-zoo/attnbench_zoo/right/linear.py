"""A right layer of linear attention."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench_zoo.right.layers import Unturned, twin


class Linear(Unturned):
    """Weights are products of positive features, divided by their sum (Katharopoulos et al. 2020).

    Written with a row of weights for each query, which is what the recurrent form adds up to.
    """

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
        """Positive features, ``elu + 1``, which half types would round to zero far below 0."""
        return torch.where(tensor > 0, tensor + 1, tensor.clamp_max(0.0).exp())

    def sums(self, query: Tensor, key: Tensor, seen: Tensor) -> Tensor:
        """What the rows of products are divided by, ``(B, H, L, 1)``."""
        return (query * (seen @ key)).sum(-1, keepdim=True)


LINEAR = twin(Linear)
