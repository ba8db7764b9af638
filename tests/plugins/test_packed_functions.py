"""Functions of packed documents and of paged keys."""

import torch
from torch import Tensor

import attnbench
from tests.attention_functions import blhd


def scaled_by_head(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    cache_seqlens: Tensor,
    block_table: Tensor,
    causal: bool = False,
    k_descale: Tensor | None = None,
    v_descale: Tensor | None = None,
) -> Tensor:
    """Row by row; the factors are ``(B, H)``."""
    rows = []
    for row, length in enumerate(cache_seqlens.tolist()):
        key, value = (
            cache[block_table[row].long()].flatten(0, 1)[:length].to(q.dtype)
            for cache in (k_cache, v_cache)
        )
        if k_descale is not None and v_descale is not None:
            key = key * k_descale[row][:, None].to(q.dtype)
            value = value * v_descale[row][:, None].to(q.dtype)
        scores = blhd(q[row : row + 1], key[None])
        if causal:
            hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(length - q.shape[1])
            scores = scores.masked_fill(~hidden, -torch.inf)
        rows.append((scores.softmax(-1) @ value.transpose(0, 1)).transpose(1, 2))
    return torch.cat(rows)


def test_paged_functions_take_factors_by_head() -> None:
    names = ["scales_restore_keys_and_values", "pages_are_invisible"]
    report = attnbench.check(scaled_by_head, style="paged", profile="quick", invariants=names)
    assert report.counts == {"passed": 2}, str(report)
