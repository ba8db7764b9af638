"""Other errors of a layer that may cause a violation, so that one cause has one name.

Each is tested once per layer, at a case where it is unambiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.layer_calls import Look
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.subject.layer import LayerSubject

LEFT = "left_padding_is_inert"
"""The law on padding at the left."""


def _plain(subject: LayerSubject, mask: str) -> Iterator[Look]:
    dtype = "float32" if "float32" in subject.dtypes else subject.dtypes[0]
    for seed in range(3):
        case = subject.legal(Case((3,), 6, 6, 8, 8, 8, dtype=dtype, mask=mask, seed=seed))
        with torch.random.fork_rng(devices=[]):
            yield Look(subject, case)


@functools.lru_cache(maxsize=256)
def mixes_items(subject: LayerSubject) -> bool:
    """Whether an item depends on its batch, without any padding."""
    for look in _plain(subject, "none"):
        alone = look.run(look.hidden[:1])
        whole = look.run(look.hidden)[:1]
        if look.differs(whole, alone, look.real(alone), lambda: torch.tensor(1e-3)) is not None:
            return True
    return False


@functools.lru_cache(maxsize=256)
def leaks_padding(subject: LayerSubject, mask: str) -> bool:
    """Whether the values of padded tokens change the output of a real one."""
    return any(
        leak(look, look.mask) is not None for look in _plain(subject, mask) if look.mask is not None
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
        return all(map(_holds_left_padding, _plain(subject, "none")))
    except Exception:  # it refuses such padding
        return False


def _holds_left_padding(look: Look) -> bool:
    rows, length = look.hidden.shape[:2]
    pads = (0, length // 3, length - 1)[:rows]
    mask = torch.arange(length, device=look.hidden.device) >= torch.tensor(pads)[:, None]
    if leak(look, mask) is not None:
        return False
    got = look.run(look.hidden, mask)
    for row, pad in enumerate(pads):
        own = look.hidden[row : row + 1, pad:]
        expected = look.run(own)

        def allowed(own: Tensor = own) -> Tensor:
            return rounding_of(look.subject, look.module, own)

        mine = got[row : row + 1, pad:]
        if look.differs(mine, expected, look.real(own), allowed) is not None:
            return False
    return True


@functools.lru_cache(maxsize=256)
def sees_the_future(subject: LayerSubject, mask: str) -> bool:
    """Whether an output of a causal layer changes with later tokens."""
    if not subject.spec.causal:
        return False
    for look in _plain(subject, mask):
        hidden = look.hidden.clone()
        hidden[:, 3:] = look.other(hidden[:, 3:])
        real = look.real(look.hidden, look.mask).clone()
        real[:, 3:] = False
        got, expected = look.run(hidden, look.mask), look.run(look.hidden, look.mask)
        if look.differs(got, expected, real) is not None:
            return True
    return False


def _fillings(look: Look, mask: Tensor) -> Iterable[tuple[str, Tensor]]:
    """Yield hidden states with other finite numbers in padded slots, and their description."""
    padded = ~mask.unsqueeze(-1)
    large = look.other(look.hidden).sign() * look.large()
    for told, filling in (
        ("zeros", torch.zeros_like(look.hidden)),
        (f"± {look.large():g}", large),
        ("other tokens", look.other(look.hidden)),
    ):
        yield told, torch.where(padded, filling, look.hidden)


def leak(look: Look, mask: Tensor, given: Tensor | None = None) -> InvariantViolation | None:
    """The violation if changing padded tokens changes outputs of real ones, or ``None``.

    Args:
        look: module and hidden states.
        mask: True for a real token.
        given: mask with which the layer is called; by default ``mask``.
    """
    given = mask if given is None else given
    expected = look.run(look.hidden, given)
    for told, hidden in _fillings(look, mask):
        got = look.run(hidden, given)
        found = look.differs(got, expected, look.real(look.hidden, mask))
        if found is not None:
            try:
                what = f"with {told} in padded slots, output"
                look.accuse(found, got, expected, what, "the output with what they held before")
            except InvariantViolation as violation:
                return violation
    return None


@functools.lru_cache(maxsize=256)
def sees_beyond_window(subject: LayerSubject) -> bool:
    """Whether the last output changes with tokens outside its window."""
    window = subject.width
    if window is None:
        return False
    dtype = "float32" if "float32" in subject.dtypes else subject.dtypes[0]
    length = window + 4
    for seed in range(3):
        case = Case((2,), length, length, 8, 8, 8, dtype=dtype, seed=seed)
        with torch.random.fork_rng(devices=[]):
            look = Look(subject, subject.legal(case))
        hidden = look.hidden.clone()
        hidden[:, :-window] = look.other(hidden[:, :-window])
        got, expected = look.run(hidden)[:, -1:], look.run(look.hidden)[:, -1:]

        def allowed(look: Look = look) -> Tensor:
            return rounding_of(look.subject, look.module, look.hidden)[:, -1:]

        if look.differs(got, expected, look.real(got), allowed) is not None:
            return True
    return False
