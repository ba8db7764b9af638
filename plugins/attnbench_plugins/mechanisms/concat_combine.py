r"""Attention as sequence-to-sequence tutorials teach it: weights straight from state and input.

:math:`\alpha = \mathrm{softmax}(W_a [q; k] + b_a)` over a fixed number of slots, then
:math:`W_c [q; \alpha V] + b_c`. The query holds [q; k], a decoder's state and its embedded input;
the key is ignored. A weight depends on the number of its slot, so keys cannot be moved.
Source: encoder-decoder tutorials, after Bahdanau et al. 2015, arXiv:1409.0473.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

import attnbench
from attnbench import OptionError, ShapeError, Sizes
from attnbench.testing import pool, prepare, softmax_weights
from attnbench_plugins._floats import Rows, matvec, pooled, softmax

_SLOTS = 8


class ConcatCombineAttention(nn.Module):
    """Weigh numbered slots by state and input.

    Args:
        query_size: Eq, the size of [q; k].
        key_size: Ek, ignored.
        value_size: Ev.
        slots: the largest S.
        state_size: number of the query's features that are q; by default half of them.
        output_size: size of the output; by default Ev.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        slots: int = _SLOTS,
        state_size: int | None = None,
        output_size: int | None = None,
    ) -> None:
        super().__init__()
        self.slots = slots
        self.state_size = (query_size + 1) // 2 if state_size is None else state_size
        output_size = value_size if output_size is None else output_size
        if min(slots, output_size) < 1 or not 0 < self.state_size <= query_size:
            raise OptionError(
                f"concat_combine: slots={slots}, output_size={output_size} and "
                f"state_size={self.state_size}; all must be at least 1, and state_size at most "
                f"query_size={query_size}."
            )
        self.slot_proj = nn.Linear(query_size, slots)
        self.out_proj = nn.Linear(self.state_size + value_size, output_size)

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
        """The output ``(..., L, Ev)``, and on request the weights ``(..., L, S)``.

        If S is below the number of slots, the last slots are not used.
        """
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal, dropout_p)
        kv_len = key.shape[-2]
        if kv_len > self.slots:
            raise ShapeError(
                f"concat_combine has slots={self.slots}, but the key has length {kv_len}; make it "
                f"with slots={kv_len}."
            )
        scores = self.slot_proj(query)[..., :kv_len]
        scores = scores + key[..., :0].sum(-1).unsqueeze(-2)  # 0, keeps the key in the graph
        weights = softmax_weights(scores, call.mask)
        read = pool(weights, call.value, dropout_p=dropout_p if self.training else 0.0)
        both = torch.cat([query[..., : self.state_size], read.to(query.dtype)], -1)
        output = call.zero_empty_rows(self.out_proj(both))
        return (output, weights.to(query.dtype)) if return_weights else output


def _sizes(sizes: Sizes, slots: int = _SLOTS) -> Sizes:
    return sizes.replace(kv_len=min(sizes.kv_len, slots))


def _reference(
    module: ConcatCombineAttention, query: Rows, key: Rows, value: Rows, allowed: list[list[bool]]
) -> Rows:
    w_a, b_a = module.slot_proj.weight.tolist(), module.slot_proj.bias.tolist()
    w_c, b_c = module.out_proj.weight.tolist(), module.out_proj.bias.tolist()
    output = []
    for q, may in zip(query, allowed, strict=True):
        scores = [x + b for x, b in zip(matvec(w_a, q), b_a, strict=True)][: len(key)]
        both = [*q[: module.state_size], *pooled(softmax(scores, may), value)]
        row = (x + b if any(may) else 0.0 for x, b in zip(matvec(w_c, both), b_c, strict=True))
        output.append(list(row))
    return output


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``concat_combine``."""
    yield attnbench.MechanismSpec(
        name="concat_combine",
        make=ConcatCombineAttention,
        formula="W_c[q; αV] + b_c, α = softmax(W_a[q; k] + b_a)",
        source="encoder-decoder tutorials, after Bahdanau et al. 2015, arXiv:1409.0473",
        sizes=_sizes,
        reference=_reference,
        accepts=("is_causal", "valid_lens", "dropout_p", "return_weights"),
        laws=("trailing_padding_equals_deleting",),
        exempt={
            "masking_equals_deleting": "a weight goes by the slot's number, and deleting a key "
            "moves those behind it; the law trailing_padding_equals_deleting takes its place",
            "keys_permute_freely": "a weight goes by the slot's number, the key is ignored",
        },
    )
