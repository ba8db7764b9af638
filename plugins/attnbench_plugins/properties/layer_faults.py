"""Errors of a layer that others cause.

One cause has one name: an invariant keeps clear of what another one tells. Each such error is
tested once per layer, at a case where it is unambiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation
from attnbench.testing import LayerCase, LayerSubject, accepts, differentiate, holds, largest

takes_padding = accepts("padding_mask")

LEFT = "left_padding_is_inert"
"""The law on padding at the left."""


def gradient_floor(subject: LayerSubject, gradient: Tensor) -> float:
    """The gradient that counts as none, where the outputs' weights and the inputs are near 1.

    All of a gradient may be rounding, as behind a norm of one feature.
    """
    return 32 * subject.eps(gradient.dtype) * max(largest(gradient), 1.0)


def _plain(subject: LayerSubject, mask: str, length: int = 6) -> Iterator[LayerCase]:
    for seed in range(3):
        case = Case((3,), length, length, 8, 8, 8, mask=mask, seed=seed)
        with torch.random.fork_rng(devices=[]):
            yield LayerCase(subject, subject.legal(case))


@functools.lru_cache(maxsize=256)
def mixes_items(subject: LayerSubject) -> bool:
    """Whether an item depends on its batch, without any padding."""
    for layer in _plain(subject, "none"):
        alone = layer.run(layer.hidden[:1])
        whole = layer.run(layer.hidden)[:1]
        if layer.differs(whole, alone, layer.real(alone), lambda: torch.tensor(1e-3)) is not None:
            return True
    return False


@functools.lru_cache(maxsize=256)
def leaks_padding(subject: LayerSubject, mask: str) -> bool:
    """Whether the values of padded tokens change the output of a real one."""
    return any(
        leak(layer, layer.mask) is not None
        for layer in _plain(subject, mask)
        if layer.mask is not None
    )


@functools.lru_cache(maxsize=256)
def holds_left_padding(subject: LayerSubject) -> bool:
    """Whether an item padded at the left gives, in one call, what it gives alone.

    The law promises it. Without the law a few calls show it, and what holds in one call has to hold
    with a cache.
    """
    if "padding_mask" not in subject.accepts:
        return False
    if LEFT in subject.laws:
        return True
    try:
        return all(_holds_padding(layer) for layer in _plain(subject, "none"))
    except Exception:  # it refuses such padding
        return False


def _holds_padding(layer: LayerCase) -> bool:
    rows, length = layer.hidden.shape[:2]
    pads = (0, length // 3, length - 1)[:rows]
    mask = torch.arange(length, device=layer.hidden.device) >= torch.tensor(pads)[:, None]
    if leak(layer, mask) is not None:
        return False
    got = layer.run(layer.hidden, mask)
    for row, pad in enumerate(pads):
        own = layer.hidden[row : row + 1, pad:]
        expected = layer.run(own)
        mine, limits = got[row : row + 1, pad:], functools.partial(layer.limits, own)
        if layer.differs(mine, expected, layer.real(own), limits) is not None:
            return False
    return True


@functools.lru_cache(maxsize=256)
def sees_the_future(subject: LayerSubject, mask: str) -> bool:
    """Whether an output of a causal layer changes with later tokens."""
    if not subject.spec.causal:
        return False
    for layer in _plain(subject, mask):
        hidden = layer.hidden.clone()
        hidden[:, 3:] = layer.other(hidden[:, 3:])
        real = layer.real(layer.hidden, layer.mask).clone()
        real[:, 3:] = False
        got, expected = layer.run(hidden, layer.mask), layer.run(layer.hidden, layer.mask)
        if layer.differs(got, expected, real) is not None:
            return True
    return False


def no_gradient(layer: LayerCase, counted: Tensor, inert: Tensor, what: str) -> None:
    """Raise if the counted outputs ``(B, L, 1)`` have a gradient by the inert hidden states."""
    if layer.case.is_narrow or not layer.subject.conventions.gradients:
        return
    hidden = layer.hidden.detach().clone().requires_grad_()
    output, _ = layer.call(hidden, layer.mask)
    if not output.requires_grad or not bool(output.isfinite().all()):
        return  # of which other invariants tell
    weight = layer.other(output.detach()).masked_fill(~counted, 0.0)
    (gradient,) = differentiate(output, [hidden], weight)
    if gradient is not None:
        allowed = gradient_floor(layer.subject, gradient)
        fits = ~inert | (gradient.abs() <= allowed)
        holds(fits, f"the gradient of {what}", gradient, f"0 (± {allowed:.2g})")


def _fillings(layer: LayerCase, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Yield hidden states with other finite numbers in padded slots, and their description."""
    padded = ~mask.unsqueeze(-1)
    large = layer.other(layer.hidden).sign() * layer.large()
    for name, filling in (
        ("zeros", torch.zeros_like(layer.hidden)),
        (f"± {layer.large():g}", large),
        ("other tokens", layer.other(layer.hidden)),
    ):
        yield name, torch.where(padded, filling, layer.hidden)


def leak(layer: LayerCase, mask: Tensor, given: Tensor | None = None) -> InvariantViolation | None:
    """The violation if changing padded tokens changes outputs of real ones, or ``None``.

    Args:
        layer: module and hidden states.
        mask: True for a real token.
        given: mask with which the layer is called; by default ``mask``.
    """
    given = mask if given is None else given
    expected = layer.run(layer.hidden, given)
    for filling, hidden in _fillings(layer, mask):
        violation = layer.differs(
            layer.run(hidden, given),
            expected,
            layer.real(layer.hidden, mask),
            what=f"with {filling} in padded slots, output",
            other="the output with what they held before",
        )
        if violation is not None:
            return violation
    return None
