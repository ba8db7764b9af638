"""Invariants on the range and the rounding of a dtype: finite outputs, and errors that cancel.

A bias too small for the largest error of one element adds up over layers and steps of training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from attnbench import Case, Inputs, InvariantViolation, RefusalError, Subject
from attnbench.strategies import listed
from attnbench.testing import (
    FREE_MASKS,
    STANDARD_ERRORS,
    Baseline,
    Oracle,
    differentiate,
    holds,
    is_textbook,
    needs,
    reject,
    representable,
    widened,
)
from attnbench_plugins.properties import invariant

_BAND = 0.25
"""Part of the errors' root mean square that their mean may be, beside its standard errors.

Of rounding to nearest the mean is 0; of cutting digits off it is 0.87 of the root mean square.
"""

_LEAST = 2.0**-6
"""Part of a unit in the last place below which a mean is no matter."""

_AVERAGE = 0.25
"""Part of the budget of an element that errors may be on average; of right runs they are 0.1."""

_CASES = (
    Case((256,), 4, 24, 8, 8, 4),
    Case((32,), 64, 64, 8, 8, 4, mask="causal"),
    Case((4, 64), 3, 7, 16, 16, 3),
    Case((64,), 4, 300, 8, 8, 4, mask="boolean"),
)
"""Many items each: what is rounded before rows meet it is rounded alike for a whole item."""

_OUTWEIGHED = Case((32,), 1, 513, 8, 8, 8).tried(maxima="outweighed")
"""One key takes nearly all weight: a sum kept in a half type loses that of the others."""


def _has_both(subject: Subject) -> str | None:
    if "float64" not in subject.dtypes:
        return "float64 is not supported, and no run in it tells the errors"
    return None if _half(subject) else "no half type is supported"


@invariant(
    kinds=("kernel", "mechanism"),
    cases=lambda subject: listed(
        *_cases_of(subject), enough=1, variants={"maxima": ("alone", "tied")}
    ),
    applies=_has_both,
)
def rounding_has_no_bias(subject: Subject, case: Case) -> None:
    """Over many items, the errors of output and gradients in half types have a mean of 0 within its
    standard error, and on average are a quarter of what one may be.
    """
    base = Baseline(subject, case)
    if case.variant("maxima", "alone") == "outweighed":
        if not case.is_narrow:  # as --dtype makes of it
            reject("a right sum in float32 loses such weights as well")
        _sums_small_weights(base)
        return
    key = base.inputs.key
    if case.variant("maxima", "alone") == "tied":  # each key is given twice
        key = key.index_select(-2, torch.arange(case.kv_len, device=key.device) // 2 * 2)
    base = base.on(base.inputs.replace(key=key, value=base.inputs.value.abs() + 0.25))
    oracle = Oracle(subject, base.module, base.inputs)
    if not _varies(base, oracle):
        raise RefusalError("its weights are alike for all queries, and rounded alike")
    error = base.output.detach().cpu().double() - oracle.output
    _has_no_mean(error, float(oracle.output.abs().mean()), base, "output")
    share = float((error / oracle.budget()).square().mean().sqrt())
    if not share <= _AVERAGE:
        raise InvariantViolation(
            quantity="root mean square of the output's errors, in parts of their budgets",
            got=share,
            expected=f"at most {_AVERAGE}",
            error=share / _AVERAGE,
        )
    if subject.conventions.gradients and "gradients_are_right" not in subject.exempt:
        _unbiased_gradients(base)


def _varies(base: Baseline, oracle: Oracle) -> bool:
    """Whether other queries change the output by more than rounding does."""
    query = base.other(base.inputs.query)
    other = Oracle(base.subject, base.module, base.inputs.replace(query=query))
    change = (other.output - oracle.output).abs().mean()
    return float(change) > 2 * base.eps * float(oracle.output.abs().mean())


def _sums_small_weights(base: Baseline) -> None:
    """Raise if the sum of a row, to which the first key gives 1, loses the weight of the others.

    Each of these has from a 64th to a 360th of half a unit in the last place, so that the sum of a
    few of them is lost beside 1 as well.
    """
    bits = 6 + 2.5 * torch.rand(base.inputs.query.shape[0], 1, 1, generator=base.generator)
    score = math.log(2) * (bits - math.log2(base.eps / 2))
    feature = (score / base.inputs.query.shape[-1] ** 0.5).sqrt().to(base.inputs.query)
    key = torch.zeros_like(base.inputs.key)
    key[..., :1, :] = feature
    query, value = torch.zeros_like(base.inputs.query) + feature, base.inputs.value.abs() + 0.25
    base = base.on(base.inputs.replace(query=query, key=key, value=value))
    error = base.output.detach().cpu().double()
    error -= Oracle(base.subject, base.module, base.inputs).output
    others = (key.shape[-2] - 1) * (-score).exp()
    _has_no_mean(error / others, 1.0, base, "output, in parts of the weight of all keys but one,")


def _unbiased_gradients(base: Baseline) -> None:
    key = base.inputs.key.clone()
    feature = slice(None)
    if is_textbook(base.subject):  # the query's feature gets the sum of a row's gradients: 0
        key[..., -1], feature = 1.0, slice(-1, None)
    inputs = base.inputs.replace(key=key)
    weight = torch.rand(base.output.shape, generator=base.generator, dtype=torch.float64) + 0.25
    weight = weight.to(base.output)
    found = _gradients(base, base.module, inputs, weight)
    fresh, _ = base.subject.build(base.case)  # what the module keeps of calls may not be copied
    right = _gradients(base, *widened(fresh, inputs), weight.cpu().double())
    for name, got, should in zip(("query", "value"), found, right, strict=True):
        if got is None or should is None:
            continue
        error, size = got.cpu().double() - should, float(should.abs().mean())
        if name == "query":
            error, size = error[..., feature], key.shape[-1] ** -0.5
        _has_no_mean(error, size, base, f"gradient of (output * g).sum() by {name}")


def _gradients(
    base: Baseline, module: nn.Module, inputs: Inputs, weight: Tensor
) -> tuple[Tensor | None, ...]:
    query, value = (t.detach().requires_grad_() for t in (inputs.query, inputs.value))
    output = base.subject.output(module, inputs.replace(query=query, value=value))
    return differentiate(output, [query, value], weight)


def _has_no_mean(errors: Tensor, size: float, base: Baseline, what: str) -> None:
    """Raise if errors have a mean that chance and a band do not explain.

    Power: the mean of digits cut off, half a unit, is beyond the band and 20 standard errors.
    """
    if not bool(errors.isfinite().all()):
        reject("an error that is not finite, which other invariants tell of")
    items = errors.flatten(0, len(base.case.lead) - 1).flatten(1).mean(1)
    if len(items) < 32:
        raise RefusalError("it takes too few items at once for a mean of their errors")
    mean, chance = float(errors.mean()), float(items.std()) / math.sqrt(len(items))
    allowed = _BAND * float(errors.square().mean().sqrt()) + STANDARD_ERRORS * chance
    allowed = max(allowed, _LEAST * base.eps * size)
    if abs(mean) > allowed:
        raise InvariantViolation(
            quantity=f"mean signed error of {what} in {base.case.dtype}",
            got=mean,
            expected=0.0,
            other="rounding to nearest",
            allowed=allowed,
            error=abs(mean) / allowed,
        )


def _cases_of(subject: Subject) -> Iterable[Case]:
    dtypes = _half(subject)
    for number, case in enumerate(_CASES):
        for dtype in dtypes if number < 2 else dtypes[:1]:
            if subject.takes_mask(case.mask):
                legal = subject.legal(case.replace(dtype=dtype, seed=number))
                times = max(1, legal.value_size // 64)  # features that vary as items do
                yield legal.replace(lead=(*legal.lead[:-1], max(1, legal.lead[-1] // times)))
    if is_textbook(subject):
        yield from (subject.legal(_OUTWEIGHED.replace(dtype=dtype)) for dtype in dtypes)


def _half(subject: Subject) -> list[str]:
    return [name for name in ("bfloat16", "float16") if name in subject.dtypes]


_EXTREME = {"float64": 1e60, "float32": 1e6, "bfloat16": 1e6}
"""How much further than the regimes the wider ranges are tried; float16 has no room.

Not to the end of float32: torch's fused attention, norms and cosine end at 1e19 themselves.
"""

_LARGE = 30_000.0
"""Every value in float16, whose end is 65,504: a mean of them fits, a sum of three does not."""


@invariant(
    masks=FREE_MASKS,
    regimes=("near_overflow", "huge", "opposed", "far", "tiny", "zero_keys"),
    max_len=33,
    variants={"range": ("usual", "wide")},
)
def finite_at_extremes(subject: Subject, case: Case) -> None:
    """The output is finite at every magnitude whose scores the dtype can hold."""
    module, inputs = subject.build(case)
    projects = subject.scoring is None and any(True for _ in module.parameters())
    if case.dtype == "float16" and case.regime == "huge" and projects:
        reject("what a projection makes of numbers so large may be more than the dtype holds")
    factor, own = 1.0, subject.conventions.internal_dtype
    if case.regime in ("huge", "near_overflow") and case.variant("range", "usual") == "wide":
        factor = min(_EXTREME.get(name, 1.0) for name in (case.dtype, own or case.dtype))
        inputs = inputs.replace(query=inputs.query * factor, key=inputs.key * factor)
    if case.dtype == "float16":
        representable(Oracle(subject, module, inputs), case)
    output = subject.output(module, inputs)
    sizes = (float(t.abs().max()) for t in (inputs.query, inputs.key))
    what = "finite: query and key hold numbers up to {:.3g} and {:.3g}".format(*sizes)
    holds(output.isfinite(), "output", output, what)
    if subject.gives_weights and "return_weights" in subject.accepts:
        weights = needs(subject.weights(module, inputs))
        holds(weights.isfinite(), "weights", weights, what)
    means = (  # what is none, such as a sum of sigmoids, is exempt from the second
        "pools_values" in subject.laws and "output_lies_within_values" not in subject.spec.exempt
    )
    if case.dtype == "float16" and means:
        output = subject.output(module, inputs.replace(value=torch.full_like(inputs.value, _LARGE)))
        what = f"finite: every value is {_LARGE:.3g}, and so is their mean"
        holds(output.isfinite(), "output", output, what)
