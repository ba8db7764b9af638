"""A layer at a case, called without a cache, and errors of a layer that others cause.

One cause has one name: an invariant keeps clear of what another one tells. Each such error is
tested once per layer, at a case where it is unambiguous.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnbench import Case, Invariant, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy, cases
from attnbench.testing import (
    LayerSubject,
    accepts,
    differentiate,
    floor_of,
    holds,
    largest,
    reject,
    rounding_of,
)
from attnbench_plugins.properties import invariant

_LARGE = {"float64": 1e4, "float32": 1e3, "bfloat16": 64.0, "float16": 16.0}


def layer_cases(subject: Subject, **narrowed: Any) -> CaseStrategy:
    """Short cases of a layer, by default without a mask."""
    tokens = getattr(subject.spec, "tokens", None) or 0
    chosen: dict[str, Any] = {
        "masks": ("none",),
        "layouts": ("contiguous",),
        "regimes": ("normal", "equal_keys"),
        "max_len": max(17, tokens),
        "max_features": 17,
    }
    return cases(subject, **{**chosen, **narrowed})


takes_padding = accepts("padding_mask")


def layer_invariant(
    *, cases: Callable[..., CaseStrategy] = layer_cases, **declared: Any
) -> Callable[[Callable[[LayerCase], None]], Invariant]:
    """A decorator that makes an invariant on layers of a check of a :class:`LayerCase`.

    Args:
        cases, declared: arguments of :func:`attnbench.testing.invariant`.
    """

    def made(check: Callable[[LayerCase], None]) -> Invariant:
        @functools.wraps(check)
        def checked(subject: Subject, case: Case) -> None:
            check(LayerCase(subject, case))

        return invariant(cases=cases, kinds=("layer",), **declared)(checked)

    return made


class LayerCase:
    """The module and inputs of a case.

    Args:
        subject: a layer.
        case: case whose seed gives the parameters and all tensors.
    """

    def __init__(self, subject: Subject, case: Case) -> None:
        assert isinstance(subject, LayerSubject)
        self.subject, self.case = subject, case
        self.module, _ = subject.build(case)
        inputs = subject.inputs(case)
        self.hidden, self.mask = inputs.hidden, inputs.padding_mask
        self.generator = torch.Generator().manual_seed(case.seed + 2**30)

    def choose(self, count: int) -> int:
        """Choose one of ``0 .. count - 1`` by the case's seed."""
        return int(torch.randint(count, (), generator=self.generator))

    def other(self, hidden: Tensor) -> Tensor:
        """Other tokens of the same shape."""
        drawn = torch.randn(hidden.shape, generator=self.generator, dtype=torch.float64)
        return drawn.to(hidden)

    def large(self) -> float:
        """A value for padding that is large, but leaves all results finite."""
        return _LARGE.get(self.case.dtype, 16.0)

    def run(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The unchanged output ``(B, L, E)``, under ``no_grad``."""
        with torch.no_grad():
            return self.call(hidden, mask)[0]

    def real(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """``(B, L, 1)``: where there is a real token."""
        if mask is None:
            return torch.ones(*hidden.shape[:-1], 1, dtype=torch.bool, device=hidden.device)
        return mask.unsqueeze(-1)

    def call(
        self, hidden: Tensor, mask: Tensor | None = None, cache: Any = None, **beside: Any
    ) -> tuple[Tensor, Any]:
        """Call the module; see :meth:`LayerSubject.call`."""
        return self.subject.call(self.module, hidden, mask, cache, **beside)

    def limits(self, hidden: Tensor, mask: Tensor | None = None) -> Tensor:
        """The effect of rounding on a call, ``(B, L, 1)``."""
        return rounding_of(self.subject, self.module, hidden, mask)

    def differs(
        self,
        got: Tensor,
        expected: Tensor,
        real: Tensor,
        allowed: Any = None,
        *,
        what: str = "output",
        other: str = "",
    ) -> InvariantViolation | None:
        """The violation at the worst place where two outputs differ by more than rounding.

        Args:
            got, expected: outputs.
            real: the elements to compare.
            allowed: returns the effect of rounding; by default that on the case's own call.
            what, other: names of the two outputs.
        """
        floor = floor_of(self.subject, expected, got.dtype)
        if worst_place(got, expected, floor, real) is None:
            return None
        limits = (self.rounding if allowed is None else allowed()).expand(got.shape)
        place = worst_place(got, expected, limits, real)
        if place is None:
            return None
        one, two, most = got[place].item(), expected[place].item(), float(limits[place])
        return InvariantViolation(
            quantity=what,
            place=place,
            got=one,
            expected=two,
            other=other,
            allowed=most,
            error=abs(one - two) / most if most else None,
            compared={"got": got, "expected": expected},
        )

    @functools.cached_property
    def rounding(self) -> Tensor:
        """The effect of rounding on the case's own call, ``(B, L, 1)``."""
        return self.limits(self.hidden, self.mask)

    def expect(
        self,
        got: Tensor,
        expected: Tensor,
        real: Tensor,
        what: str,
        other: str,
        *,
        allowed: Any = None,
    ) -> None:
        """Raise where two outputs differ; the arguments are those of :meth:`differs`."""
        violation = self.differs(got, expected, real, allowed, what=what, other=other)
        if violation is not None:
            raise violation

    def padded(self) -> Tensor:
        """The mask; rejects the case if nothing is padded."""
        if self.mask is None or bool(self.mask.all()):
            reject("nothing is padded")
        return self.mask


def gradient_floor(subject: LayerSubject, gradient: Tensor) -> float:
    """The gradient that counts as none, where the outputs' weights and the inputs are near 1.

    All of a gradient may be rounding, as behind a norm of one feature.
    """
    return 32 * subject.eps(gradient.dtype) * max(largest(gradient), 1.0)


def worst_place(got: Tensor, expected: Tensor, allowed: Tensor | float, real: Tensor) -> Any:
    """The index at which two tensors exceed the allowed difference most; ``None`` if nowhere.

    NaN in both is no difference: ``keeps_the_contract`` tells of a layer that gives NaN.

    Args:
        got, expected: ``(B, L, E)``.
        allowed: allowed difference, broadcasts to them.
        real: boolean, broadcasts to them: the elements to compare.
    """
    if not got.numel():
        return None
    one, two = got.detach().cpu().double(), expected.detach().cpu().double()
    gap = (one - two).abs().nan_to_num(nan=float("inf"))
    excess = gap / torch.as_tensor(allowed, dtype=torch.float64)
    alike = (one == two) | (one.isnan() & two.isnan())
    excess = torch.where(real.cpu() & ~alike, excess, 0.0)
    worst = int(excess.flatten().argmax())
    if float(excess.flatten()[worst]) <= 1.0:
        return None
    return tuple(map(int, np.unravel_index(worst, got.shape)))


LEFT = "left_padding_is_inert"
"""The law on padding at the left."""


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
