r"""Attention over sums of :math:`w \tanh(a + b)` or :math:`w (a - b)^2` over hidden units.

No tanh is computed: :math:`\tanh(a+b) = 1 - 2/(1 + e^{2a}e^{2b})`. Exponentials are needed of L·h
and S·h elements only; each of the L·S·h terms costs a product, a share of a division and a sum.
The form with tanh remains for float64 and for values whose exponentials cannot be shifted into
float32's range; :func:`shifted` decides this from the data. Squares are computed from the
difference itself, since :math:`a^2 - 2ab + b^2` loses all accuracy if a and b are large and close.

On the CPU the loops are those of :mod:`.native`. Without them, and on an accelerator where
:mod:`.online` does not run, torch's own operations run, tanh among them, eagerly and in blocks.
"""

from __future__ import annotations

import math
from importlib import metadata

import torch
from torch import Tensor

from attnbench_kernels import library, native, online
from attnbench_kernels.native import Form

_REACH, _SATURATED = 18.0, 15.0
"""``exp(2·(18 + 15))`` times the largest ``1 / w`` is finite; ``tanh(15)`` is 1 to 2e-13."""
_TINY = 0.25
"""If the extremes of both sides add up to less than this, all hidden units are nearly linear."""
_FUSED_PAIRS, _EAGER_TERMS = 2**21, 2**20
"""Pairs in a block (8 MiB in float32), and numbers in a temporary tensor of the eager loops."""


class Status:
    """How the last loops ran: ``native``, ``triton`` or ``eager``; ``None`` if none ran yet."""

    path: str | None = None


def ran(path: str) -> None:
    """Note how the loops ran."""
    Status.path = path


def runs_as() -> str:
    """Describe how the last loops ran, or, if none ran yet, how they would run on the CPU."""
    if Status.path == "triton":
        return f"Triton {metadata.version('triton')}"
    if Status.path == "eager" and library.library() is not None:  # on an accelerator
        return ", since ".join(filter(None, ("eager", online.refusal())))
    return library.described()


def _path(like: Tensor) -> str:
    return "eager" if like.device.type != "cpu" or library.library() is None else "native"


def block_pairs(a: Tensor) -> int:
    """The number of query-key pairs in a block."""
    return _FUSED_PAIRS if _path(a) != "eager" else max(1, _EAGER_TERMS // a.shape[-1])


def shifted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, float | None]:
    """Shift both sides per hidden unit so that their exponentials are in float32's range.

    Args:
        a: ``(N, L, h)``.
        b: ``(N, S, h)``.

    Returns:
        ``a - c`` and ``b + c``, and a bound of ``|a| + |b|``. A side so large that tanh is 1
        whatever is added to it is clamped. The bound is ``None`` if there is no such c, if all
        values are nearly 0, and in float64; the form with tanh is then needed.
    """
    if a.dtype == torch.float64:
        return a, b, None
    limit = _REACH + _SATURATED
    low, high, least, most = torch.stack([*torch.aminmax(a), *torch.aminmax(b)]).tolist()
    a_end, b_end = max(-low, high), max(-least, most)
    if a_end <= limit and b_end <= limit:
        # 1 - 2r is rounded relative to 1, tanh(x) relative to x: too inexact for scores near 0
        tiny = abs(low) + abs(high) + abs(least) + abs(most) < _TINY
        return a, b, None if tiny else a_end + b_end
    (a_low, a_high), (b_low, b_high) = (torch.aminmax(t.flatten(0, 1), dim=0) for t in (a, b))
    a_reach, b_reach = (a_high - a_low) / 2, (b_high - b_low) / 2
    reach = torch.minimum(a_reach, b_reach)
    if not bool((reach <= _REACH).all()):  # also if NaN
        return a, b, None
    shift = torch.where(a_reach <= b_reach, a_low + a_reach, -(b_low + b_reach))
    bound = reach + _SATURATED
    return (a - shift).clamp(-bound, bound), (b + shift).clamp(-bound, bound), 2 * limit


def _tanh_scores(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return (w[:, None, None] * (a[:, :, None] + b[:, None]).tanh()).sum(-1)


def _tanh_slopes(a: Tensor, b: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    t = (a[:, :, None] + b[:, None]).tanh()
    weighted = g[..., None] * t
    slope = g[..., None] - weighted * t
    w = w[:, None]
    return slope.sum(2) * w, slope.sum(1) * w, weighted.sum((1, 2))


def _squares(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
    return (w[:, None, None] * (a[:, :, None] - b[:, None]).square()).sum(-1)


def _square_slopes(a: Tensor, b: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
    x = a[:, :, None] - b[:, None]
    weighted = g[..., None] * x
    w = 2 * w[:, None]
    return weighted.sum(2) * w, weighted.sum(1) * -w, (weighted * x).sum((1, 2))


def _formed(a: Tensor, b: Tensor, squares: bool) -> tuple[Tensor, Tensor, Form, float]:
    """Both sides as the loops need them, the form, and a bound of ``|a| + |b|`` for quotients."""
    if squares:
        return a, b, Form.SQUARES, 0.0
    a, b, reach = shifted(a, b)
    return (a, b, Form.TANH, 0.0) if reach is None else (a, b, Form.QUOTIENT, reach)


def attend(
    a: Tensor,
    b: Tensor,
    w: Tensor,
    mask: Tensor | None,
    visible: int,
    squares: bool,
    value: Tensor | None = None,
    output: Tensor | None = None,
    weights: Tensor | None = None,
) -> None:
    r"""Softmax over :math:`w^\top \tanh(a_i + b_j)`, and its product with the values.

    With ``squares`` it is over :math:`w^\top (a_i - b_j)^2`.

    Args:
        a: ``(N, L, h)``, float32 or float64, as all others.
        b: ``(N, S, h)``.
        w: ``(N, h)``.
        mask: boolean or floating, broadcasts to ``(N, L, S)``; every row has a key.
        visible: number of slots that the first row sees; each row sees one more than the one above.
        squares: use squares of differences instead of tanh of sums.
        value: ``(N, S, Ev)``, required with ``output``.
        output: ``(N, L, Ev)``, written if given.
        weights: ``(N, L, S)``, written if given.
    """
    if _path(a) == "native":
        a, b, form, reach = _formed(a, b, squares)
        native.attend(a, b, w, mask, visible, form, reach, value, output, weights)
        ran("native")
        return
    ran("eager")
    rows, slots = a.shape[1], b.shape[1]
    scores = _squares(a, b, w) if squares else _tanh_scores(a, b, w)
    if visible < slots:
        last = torch.arange(visible, visible + rows, device=a.device).unsqueeze(1)
        scores = scores.masked_fill(torch.arange(slots, device=a.device) >= last, -math.inf)
    if mask is not None:
        hides = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -math.inf) if hides else scores + mask
    found = scores.softmax(-1)
    if weights is not None:
        weights.copy_(found)
    if value is not None and output is not None:
        output.copy_(found @ value)


def slopes(
    g: Tensor, a: Tensor, b: Tensor, w: Tensor, visible: int, squares: bool, grad_a: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of ``a``, ``b`` and ``w`` from the gradient of the scores; see :func:`attend`.

    Args:
        g: gradient of the scores, ``(N, L, S)``; 0 for hidden slots.
        a: ``(N, L, h)``.
        b: ``(N, S, h)``.
        w: ``(N, h)``.
        visible, squares: as above.
        grad_a: ``(N, L, h)``, written.

    Returns:
        Gradients of ``b`` and ``w``.
    """
    if _path(a) == "native":
        a, b, form, reach = _formed(a, b, squares)
        ran("native")
        return native.slopes(g, a, b, w, visible, form, reach, grad_a)
    ran("eager")
    by_hand = _square_slopes if squares else _tanh_slopes
    slopes_a, slopes_b, slopes_w = by_hand(a, b, w, g)
    grad_a.copy_(slopes_a)
    return slopes_b, slopes_w
