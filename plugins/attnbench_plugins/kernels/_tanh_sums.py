r"""Sums over tanh of a sum of two, without a tanh: :math:`\tanh(a+b) = 1 - 2/(1 + e^{2a}e^{2b})`.

The exponentials are of L·h and S·h elements; what is left to do L·S·h times is a product, a share
of a division and a sum. The two sums here are that of the scores, over the hidden units, and that
of the derivatives, over the other side's slots. Each has a second form with tanh itself, for
float64 and for values whose exponentials no shift brings into float32's range; :func:`factors`
decides that from the data.

Tensors are packed for the loops: 4 rows together, so that what is loaded serves 4 of them; 16
lanes innermost, so that they fill a vector and no stride is a power of two.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from attnbench_plugins.kernels._compiled import Loops

__all__ = ["derivative_sums", "score_sums"]

_ROWS, _LANES, _SHARE = 4, 16, 4
_REACH, _SATURATED = 18.0, 15.0
"""``exp(2·(18 + 15))`` times the largest ``1 / w`` is finite; ``tanh(15)`` is 1 to 2e-13."""
_CAP = 2.0**31
"""Of ``(1 + e^{2a}e^{2b}) / w``, with the largest w 1: so the product of four is finite. What lies
above adds less than 2^-31 of the largest unit."""
_CAP_BITS = 0x4F000000
_TINY = 0.25
"""Below it, largest and smallest of both sides together, all hidden units are nearly linear."""


def _round_up(size: int, step: int) -> int:
    """The next multiple of ``step``, but two of them: sizes of 1 have graphs of their own."""
    return max(2 * step, -(-size // step) * step)


def _cut(tensor: Tensor, dim: int, size: int) -> Tensor:
    """``dim``, a multiple of ``size``, as two."""
    return tensor.reshape(*tensor.shape[:dim], -1, size, *tensor.shape[dim + 1 :])


def _padded(tensor: Tensor, columns: int, rows: int) -> Tensor:
    """So many zeros more at the end of the last two dimensions; not even a copy where none."""
    return pad(tensor, (0, columns, 0, rows)) if columns or rows else tensor


def factors(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor] | None:
    """Both sides shifted by the same per unit, so that their exponentials lie in float32's range.

    Args:
        a: ``(N, L, h)``.
        b: ``(N, S, h)``.

    Returns:
        ``a - c`` and ``b + c``; where a side lies so far out that tanh is 1 whatever it is added
        to, it is clamped. ``None`` where there is no such c, where all is nearly 0, and
        in float64: there tanh itself is to be taken.
    """
    if a.dtype == torch.float64:
        return None
    limit = _REACH + _SATURATED
    ends = torch.stack([*torch.aminmax(a), *torch.aminmax(b)]).abs()
    if bool((ends <= limit).all()):
        # 1 - 2r has the rounding of 1, tanh(x) that of x: too much for scores of nearly 0
        return None if bool(ends.sum() < _TINY) else (a, b)
    (a_low, a_high), (b_low, b_high) = (torch.aminmax(t.flatten(0, 1), dim=0) for t in (a, b))
    a_reach, b_reach = (a_high - a_low) / 2, (b_high - b_low) / 2
    reach = torch.minimum(a_reach, b_reach)
    if not bool((reach <= _REACH).all()):  # also where it is NaN
        return None
    shift = torch.where(a_reach <= b_reach, a_low + a_reach, -(b_low + b_reach))
    bound = reach + _SATURATED
    return (a - shift).clamp(-bound, bound), (b + shift).clamp(-bound, bound)


def _shared_quotients(tiles: Tensor, keys: Tensor, c: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """``scale · Σ_h 1 / (c + tile · key)``, up to a constant, one division for four units."""
    # less its middle, a term is as often positive as negative, and the sum's rounding stays small
    middle = c[..., _SHARE, None][:, None, None]
    found = []
    for row in range(_ROWS):
        x = []
        for i in range(_SHARE):
            product = tiles[:, :, row, None, :, i, None] * keys[:, None, :, :, i, :]
            total = c[:, None, None, :, i, None] + product
            # all are positive: as integers their bits are ordered alike, and have a faster min
            x.append(total.view(torch.int32).clamp_max(_CAP_BITS).view(torch.float32))
        left, right = x[0] * x[1], x[2] * x[3]
        above = (x[0] + x[1]) * right + (x[2] + x[3]) * left
        terms = above / (left * right) - middle
        found.append(terms.sum(-2).flatten(2) * scale[:, None, None])
    return (torch.stack(found, 2).flatten(1, 2),)


def _tanh_scores(tiles: Tensor, keys: Tensor, c: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """``scale · Σ_h c · tanh(tile + key)``."""
    found = []
    for row in range(_ROWS):
        x = []
        for i in range(_SHARE):
            total = tiles[:, :, row, None, :, i, None] + keys[:, None, :, :, i, :]
            x.append(c[:, None, None, :, i, None] * total.tanh())
        terms = (x[0] + x[1]) + (x[2] + x[3])
        found.append(terms.sum(-2).flatten(2) * scale[:, None, None])
    return (torch.stack(found, 2).flatten(1, 2),)


def _score_example(dtype: torch.dtype, device: torch.device, items: int) -> tuple[Tensor, ...]:
    def ones(*sizes: int) -> Tensor:
        return torch.ones(sizes, dtype=dtype, device=device)

    tiles, keys = ones(items, 34, _ROWS, 6, _SHARE), ones(items, 8, 6, _SHARE, _LANES)
    return tiles, keys, ones(items, 6, _SHARE + 1), ones(items)


_quotients = Loops(_shared_quotients, 1, _score_example)
_tanhs = Loops(_tanh_scores, 1, _score_example)


def _split(a: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """A single item as two halves of its rows: a leading size of 1 would have its own graph."""
    half = _round_up(-(-a.shape[1] // 2), _ROWS)
    halves = _padded(a, 0, 2 * half - a.shape[1]).reshape(2, half, a.shape[2])
    return halves, *(t.expand(2, *t.shape[1:]) for t in others)


def score_sums(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    """Scores ``Σ_h w tanh(a + b)``, up to a constant that is the same for all keys.

    Args:
        a: ``(N, L, h)``, float32 or float64.
        b: ``(N, S, h)``.
        w: ``(N, h)``.

    Returns:
        ``(N, L, S)``, not contiguous where sizes are odd.
    """
    items, rows, units = a.shape
    slots = b.shape[1]
    shifted = factors(a, b)
    loops, scale, c = _tanhs, torch.ones_like(w[:, 0]), w
    if shifted is not None:
        loops, (a, b) = _quotients, shifted
        largest = w.abs().amax(1, keepdim=True).clamp_min(torch.finfo(w.dtype).tiny)
        c, scale = largest / w.abs().clamp_min(largest * 2.0**-30), -2 * largest[:, 0]
        # tanh is odd: with a and b turned round, all weights are positive
        sign = torch.where(w < 0, -2.0, 2.0).unsqueeze(1)
        a, b = (a * sign).exp_().mul_(c.unsqueeze(1)), (b * sign).exp_()
    if items == 1:
        a, b, c, scale = _split(a, b, c, scale)
    more = _round_up(units, _SHARE) - units
    row_pad, slot_pad = (_round_up(n, s) - n for n, s in ((a.shape[1], _ROWS), (slots, _LANES)))
    tiles = _cut(_cut(_padded(a, more, row_pad), 1, _ROWS), 3, _SHARE)
    keys = _cut(_cut(_padded(b, more, slot_pad), 1, _LANES), 3, _SHARE).permute(0, 1, 3, 4, 2)
    # a unit more must add nothing: with tanh by c = 0, in the other form by a quotient of 2^-30
    c = _cut(pad(c, (0, more), value=0.0 if shifted is None else 2.0**30), 1, _SHARE)
    c = torch.cat([c, (0.5 / c).sum(-1, keepdim=True)], -1)
    (scores,) = loops(tiles.contiguous(), keys.contiguous(), c, scale.contiguous())
    return scores.reshape(items, -1, scores.shape[2])[:, :rows, :slots]


def _quotient_derivatives(weights: Tensor, rows: Tensor, others: Tensor) -> tuple[Tensor, ...]:
    """``Σ g r`` and ``Σ g r (1 - r)`` over the others, ``r = 1 / (1 + row · other)``."""
    plain, derived = [], []
    for row in range(_ROWS):
        r = 1 / (1 + rows[:, :, row, :, None, :] * others[:, None])
        weighted = weights[:, :, row, None, :, None] * r
        plain.append(weighted.sum(-2).flatten(2))
        derived.append((weighted - weighted * r).sum(-2).flatten(2))
    return torch.stack(plain, 2).flatten(1, 2), torch.stack(derived, 2).flatten(1, 2)


def _tanh_derivatives(weights: Tensor, rows: Tensor, others: Tensor) -> tuple[Tensor, ...]:
    """``Σ g t`` and ``Σ g (1 - t²)`` over the others, ``t = tanh(row + other)``."""
    plain, derived = [], []
    for row in range(_ROWS):
        t = (rows[:, :, row, :, None, :] + others[:, None]).tanh()
        weighted = weights[:, :, row, None, :, None] * t
        plain.append(weighted.sum(-2).flatten(2))
        derived.append((weights[:, :, row, None, :, None] - weighted * t).sum(-2).flatten(2))
    return torch.stack(plain, 2).flatten(1, 2), torch.stack(derived, 2).flatten(1, 2)


def _derivative_example(dtype: torch.dtype, device: torch.device, items: int) -> tuple[Tensor, ...]:
    def ones(*sizes: int) -> Tensor:
        return torch.ones(sizes, dtype=dtype, device=device)

    weights, rows = ones(items, 34, _ROWS, 100), ones(items, 34, _ROWS, 6, _LANES)
    return weights, rows, ones(items, 6, 100, _LANES)


_quotient_slopes = Loops(_quotient_derivatives, 2, _derivative_example)
_tanh_slopes = Loops(_tanh_derivatives, 2, _derivative_example)


def derivative_sums(g: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """``Σ_j g_ij tanh(a_i + b_j)``, up to a multiple of ``Σ_j g_ij``, and ``Σ_j g_ij tanh′``.

    Args:
        g: gradient of the scores, ``(N, L, S)``.
        a: ``(N, L, h)``, float32 or float64.
        b: ``(N, S, h)``.

    Returns:
        Both ``(N, L, h)``.
    """
    items, count, units = a.shape
    shifted = factors(a, b)
    if shifted is not None:
        a, b = ((2 * t).exp_() for t in shifted)
    if items == 1:
        a, b = _split(a, b)
        (g,) = _split(g)
    full, slots = _round_up(units, _LANES), b.shape[1]
    row_pad, slot_pad = _round_up(a.shape[1], _ROWS) - a.shape[1], max(0, 2 - slots)
    a = _cut(_cut(_padded(a, full - units, row_pad), 1, _ROWS), 3, _LANES)
    b = _cut(_padded(b, full - units, slot_pad), 2, _LANES).transpose(1, 2)
    g = _cut(_padded(g, slot_pad, row_pad), 1, _ROWS)
    loops = _tanh_slopes if shifted is None else _quotient_slopes
    plain, derived = (
        t.reshape(items, -1, full)[:, :count, :units]
        for t in loops(g.contiguous(), a.contiguous(), b.contiguous())
    )
    return (plain, derived) if shifted is None else (-2 * plain, 4 * derived)
