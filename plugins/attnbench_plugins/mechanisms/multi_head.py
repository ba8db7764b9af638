r"""Multi-head attention over any scoring function, with projections in and out.

Head i attends with :math:`W_q^i q, W_k^i k, W_v^i v`; the concatenated outputs of the heads are
projected by :math:`W_o`. Source: Vaswani et al. 2017, arXiv:1706.03762; grouped heads: Ainslie et
al. 2023, arXiv:2305.13245. The heads share the scoring function and differ by their projections.
No projection has a bias, so that a query without keys gets zeros.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

import attnbench
from attnbench import OptionError, Sizes
from attnbench.testing import make_scoring, prepare
from attnbench_plugins._floats import Rows, attended, matvec, pooled
from attnbench_plugins._projection import Projection
from attnbench_plugins.scorings._scoring import pair_score

_HEADS = 2


class MultiHeadAttention(nn.Module):
    """Attend in several heads at once.

    Args:
        query_size, key_size, value_size: Eq (a multiple of ``heads``), Ek and Ev.
        scoring: address of a scoring function, applied to heads of Eq / heads features.
        heads: number of query heads.
        kv_heads: number of key and value heads, each shared by a group of query heads; by default
            ``heads``.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = "scaled_dot",
        heads: int = _HEADS,
        kv_heads: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, heads if kv_heads is None else kv_heads
        if min(heads, self.kv_heads) < 1 or heads % self.kv_heads or query_size % heads:
            raise OptionError(
                f"multi_head: query_size={query_size}, heads={heads}, kv_heads={self.kv_heads}: "
                "choose heads that divide query_size, and kv_heads that divides heads."
            )
        size = query_size // heads
        self.scoring = make_scoring(scoring, size, size)
        self.query_proj = Projection(query_size, heads * size)
        self.key_proj = Projection(key_size, self.kv_heads * size)
        self.value_proj = Projection(value_size, self.kv_heads * size)
        self.out_proj = Projection(heads * size, value_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the projections, each of which keeps a variance of 1."""
        for proj in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.normal_(proj.weight, std=proj.in_features**-0.5)

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
        """The output ``(..., L, Ev)``, and on request the heads' mean weights ``(..., L, S)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal, dropout_p)
        result = attnbench.attend(
            self.scoring,
            _split(self.query_proj(call.query), self.heads),
            _split(self.key_proj(call.key), self.kv_heads),
            _split(self.value_proj(call.value), self.kv_heads),
            dropout_p=dropout_p,
            enable_gqa=self.kv_heads < self.heads,
            return_weights=return_weights,  # type: ignore[call-overload]
            **call.masking(unsqueezed=-3),
        )
        heads, weights = result if return_weights else (result, None)
        output: Tensor = self.out_proj(heads.transpose(-3, -2).flatten(-2))
        return output if weights is None else (output, weights.mean(-3))


def _split(tensor: Tensor, heads: int) -> Tensor:
    """Reshape ``(..., length, heads * size)`` to ``(..., heads, length, size)``."""
    return tensor.reshape(*tensor.shape[:-1], heads, tensor.shape[-1] // heads).transpose(-3, -2)


def _sizes(sizes: Sizes, heads: int = _HEADS) -> Sizes:
    return sizes.replace(query_size=-(-sizes.query_size // heads) * heads)


def _reference(
    module: MultiHeadAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    score = pair_score(module.scoring)
    group = module.heads // module.kv_heads
    parts = (module.query_proj, module.key_proj, module.value_proj)
    w_q, w_k, w_v, w_o = (proj.weight.tolist() for proj in (*parts, module.out_proj))
    size = len(w_q) // module.heads
    joined: Rows = [[] for _ in query]
    for head in range(module.heads):
        own, shared = (slice(i * size, (i + 1) * size) for i in (head, head // group))
        q = [matvec(w_q[own], x) for x in query]
        k, v = ([matvec(w[shared], x) for x in rows] for w, rows in ((w_k, key), (w_v, value)))
        for row, weights in zip(joined, attended(score, q, k, allowed), strict=True):
            row += pooled(weights, v)
    return [matvec(w_o, row) for row in joined]


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``multi_head``."""
    yield attnbench.MechanismSpec(
        name="multi_head",
        make=MultiHeadAttention,
        formula="W_o [head_1; …; head_H], head_i = Σ_j softmax_j(a(W_qⁱq, W_kⁱk_j)) W_vⁱv_j",
        source="Vaswani et al. 2017, arXiv:1706.03762",
        sizes=_sizes,
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        variants=({"scoring": "additive"}, {"heads": 4, "kv_heads": 2}),
    )
