r"""Structured self-attention: r learned rows of weights, :math:`A = \mathrm{softmax}(V_a \tanh(W_a H^\top))`.

The output is A H: key and value are the states H, the query is ignored, and L is r, the number of
rows. The penalty :math:`\lVert A A^\top - I \rVert_F^2`, added to a loss, keeps the rows apart.
Source: Lin et al. 2017, arXiv:1703.03130.
"""  # noqa: E501 -- the formula

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench import OptionError, ShapeError, Sizes
from attnbench.testing import pool, prepare, softmax_weights, widen
from attnbench_plugins._floats import Rows, matvec, pooled, softmax
from attnbench_plugins._projection import Projection
from attnbench_plugins.scorings._tanh import tanh_moment

_ROWS = 3


class StructuredSelfAttention(nn.Module):
    """Weight the states in r learned ways.

    Args:
        query_size: Eq, ignored.
        key_size, value_size: Ek and Ev.
        rows: r; the query must have as many rows, but their values are ignored.
        hidden_size: h, the number of hidden units.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        rows: int = _ROWS,
        hidden_size: int = 16,
    ) -> None:
        super().__init__()
        if rows < 1 or hidden_size < 1:
            raise OptionError(
                f"structured_self: rows={rows}, hidden_size={hidden_size}; each is at least 1."
            )
        self.key_proj = Projection(key_size, hidden_size)
        self.row_vectors = nn.Parameter(torch.empty(rows, hidden_size))
        nn.init.normal_(self.key_proj.weight, std=key_size**-0.5)
        moment = tanh_moment((key_size, 1.0))
        nn.init.normal_(self.row_vectors, std=1.0 / math.sqrt(moment * hidden_size))

    @staticmethod
    def penalty(weights: Tensor) -> Tensor:
        r""":math:`\lVert A A^\top - I \rVert_F^2` of weights ``(..., r, S)``, one number an item.

        It is 0 if and only if the rows are orthonormal: each puts all weight on a key of its own.
        """
        gram = weights @ weights.mT
        eye = torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        return (gram - eye).square().sum((-2, -1))

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
        dropout_p: float = 0.0,
        return_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """The output ``(..., r, Ev)``, and on request the weights A, ``(..., r, S)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal, dropout_p)
        rows = len(self.row_vectors)
        if query.shape[-2] != rows:
            raise ShapeError(
                f"structured_self has rows={rows}, but the query has {query.shape[-2]}; the query "
                f"is ignored, so give query.new_empty(..., {rows}, query_size)."
            )
        keys, proj, vectors = widen(call.key, self.key_proj.weight, self.row_vectors)
        scores = vectors @ (keys @ proj.mT).tanh().mT
        scores = scores + query[..., :0].sum(-1, keepdim=True).to(scores.dtype)  # 0, in its graph
        weights = softmax_weights(scores, call.mask)
        output = pool(weights, call.value, dropout_p=dropout_p if self.training else 0.0)
        output = output.to(query.dtype)
        return (output, weights.to(query.dtype)) if return_weights else output


def _sizes(sizes: Sizes, rows: int = _ROWS) -> Sizes:
    return sizes.replace(q_len=rows)


def _reference(
    module: StructuredSelfAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    proj, vectors = module.key_proj.weight.tolist(), module.row_vectors.tolist()
    hidden = [[math.tanh(x) for x in matvec(proj, k)] for k in key]
    return [
        pooled(softmax(matvec(hidden, vector), may), value)
        for vector, may in zip(vectors, allowed, strict=True)
    ]


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``structured_self``."""
    yield attnbench.MechanismSpec(
        name="structured_self",
        make=StructuredSelfAttention,
        formula="A H, A = softmax(V_a tanh(W_a Hᵀ)); penalty ‖A Aᵀ − I‖²",
        source="Lin et al. 2017, arXiv:1703.03130",
        sizes=_sizes,
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("pools_values", "penalty_is_zero_iff_orthonormal"),
        exempt={
            "queries_permute_freely": "the query is ignored, and each row has a vector of its own",
        },
    )
