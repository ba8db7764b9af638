"""Parallel forms of the monotonic recursion: its expectation over the keys, and its hard choice.

Both are exact and only multiply and add positive numbers. Neither divides by a product of
probabilities as the textbook form does, which underflows after some dozens of keys.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["carried", "expected", "forward_choice"]


def carried(stay: Tensor, enter: Tensor) -> Tensor:
    r"""All :math:`x_j = \text{stay}_j x_{j-1} + \text{enter}_j` over the last dimension.

    By doubling: after k rounds an entry includes the 2^k before it, so it takes log2(S) rounds.
    """
    step = 1
    while step < enter.shape[-1]:
        enter = enter + stay * pad(enter[..., :-step], (step, 0))
        stay = stay * pad(stay[..., :-step], (step, 0))
        step *= 2
    return enter


def expected(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The probability ``(..., L, S)`` that a query stops at a key, by p(stop) = sigmoid(score).

    Each query continues from where the previous one stopped. Hidden keys are skipped, and a query
    without keys leaves the position unchanged. All keys of a row are computed at once.
    """
    stop, go = scores.sigmoid(), (-scores).sigmoid()
    if allowed is not None:
        stop, go = stop.masked_fill(~allowed, 0.0), go.masked_fill(~allowed, 1.0)
    # a query reaches key j if it started there or continued from key j - 1
    go = pad(go[..., :-1], (1, 0))
    alive = None
    if allowed is not None:
        alive = allowed.any(-1, keepdim=True).expand(*stop.shape[:-1], 1)
    standing = torch.zeros_like(stop[..., 0, :])
    standing[..., 0] = 1.0
    rows = []
    for row in range(stop.shape[-2]):
        weights = stop[..., row, :] * carried(go[..., row, :], standing)
        rows.append(weights)
        # a query without keys leaves the position unchanged
        standing = weights if alive is None else weights.where(alive[..., row, :], standing)
    return torch.stack(rows, -2)


def forward_choice(scores: Tensor, allowed: Tensor | None) -> Tensor:
    """The slot ``(..., L)`` at which each query stops; S if it and all later queries stop nowhere.

    A query stops at the first key with a positive score, starting where the previous one stopped:
    a map from slots to slots. The maps are composed by doubling, in log2(L) rounds.
    """
    kv_len = scores.shape[-1]
    stops = scores > 0
    if allowed is not None:
        stops = stops & allowed
    slots = torch.arange(kv_len, device=scores.device)
    here = torch.where(stops, slots, kv_len)
    jump = pad(here.flip(-1).cummin(-1).values.flip(-1), (0, 1), value=kv_len)
    if allowed is not None:  # a query without keys leaves the position unchanged
        every = torch.arange(kv_len + 1, device=scores.device)
        jump = torch.where(allowed.any(-1, keepdim=True), jump, every)
    step = 1
    while step < jump.shape[-2]:
        later = jump[..., step:, :].gather(-1, jump[..., :-step, :])
        jump = torch.cat([jump[..., :step, :], later], -2)
        step *= 2
    return jump[..., 0]
