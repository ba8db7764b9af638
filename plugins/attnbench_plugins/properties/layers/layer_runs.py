"""Invariants on ways to run a layer: on no tokens, in half types, by its other methods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnbench import AttnbenchError, Case, InvariantViolation, RefusalError, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import (
    LayerCase,
    LayerSubject,
    NormEpsilon,
    agree_within,
    copied,
    floor_of,
    layer_cases,
    supports,
)
from attnbench_plugins.properties import layer_invariant
from attnbench_plugins.properties.caches.checks import has_cache

_MASKS = ("none", "padding")


@layer_invariant(regimes=("normal",), min_q_len=2)
def empty_calls_are_harmless(layer: LayerCase) -> None:
    """A call on no tokens gives none and leaves a cache as it was, or is refused."""
    nothing = layer.hidden[:, :0]
    refusals: list[str] = []
    cached = layer.subject.spec.cache is not None  # without one, a class token may be all it gives
    with _refused("a call on no tokens", refusals, strict=cached):
        layer.run(nothing)
    if cached and has_cache(layer.subject) is None:
        change = "a call with a cache on no tokens"
        half = max(1, layer.case.q_len // 2)
        parts = layer.hidden[:, :half], layer.hidden[:, half:]
        outputs = []
        with _refused(change, refusals), torch.no_grad():
            for empty in (False, True):
                cache = layer.subject.new_cache(layer.module, len(layer.hidden))
                _, cache = layer.call(parts[0], None, cache)
                if empty:
                    _, cache = layer.call(nothing, None, cache)
                outputs.append(layer.call(parts[1], None, cache)[0])
            expected, got = outputs
            whole = layer.run(layer.hidden)[:, half:]
            if layer.differs(expected, whole, layer.real(whole), lambda: layer.rounding[:, half:]):
                return  # calls_may_be_cut_anywhere tells
            allowed = floor_of(layer.subject, expected)
            agree_within(got, expected, allowed, f"after {change}, output", "the call without it")
    if refusals:
        raise RefusalError(refusals[0])


@contextlib.contextmanager
def _refused(call: str, refusals: list[str], strict: bool = True) -> Iterator[None]:
    """Note an exception as a refusal, which harms nobody; a wrong answer stays a violation."""
    try:
        yield
    except InvariantViolation:
        raise
    except AttnbenchError as error:
        if strict and not isinstance(error, RefusalError):
            raise InvariantViolation(f"{call}: {error}") from error
        refusals.append(f"it refuses {call} ({error})")
    except Exception as error:
        refusals.append(f"it refuses {call} ({type(error).__name__})")


def _has_half(subject: Subject) -> str | None:
    if not {"float16", "bfloat16"} & set(subject.dtypes):
        return "it supports no half type"
    if not {"float64", "float32"} & set(subject.dtypes):
        return "it supports nothing wider to compare with"
    return None


def _half_cases(subject: Subject) -> CaseStrategy:
    longest = Case((1,), 320, 320, 16, 16, 16)  # where bfloat16 tells no positions apart
    return layer_cases(
        subject,
        masks=_MASKS,
        regimes=("normal",),
        dtypes=("bfloat16", "float16"),
        beyond=(longest.replace(dtype="bfloat16"), longest.replace(dtype="float16")),
    )


@layer_invariant(cases=_half_cases, applies=_has_half)
def half_types_agree(layer: LayerCase) -> None:
    """In a half type the output is that of a wide one, within 4 times what one unit in the last
    place at every submodule's output changes.
    """
    wide = "float64" if "float64" in layer.subject.dtypes else "float32"
    dtype = getattr(torch, wide)
    with torch.no_grad(), NormEpsilon(layer.hidden.dtype):
        module = copied(layer.module).to(dtype)
        expected, _ = layer.subject.call(module, layer.hidden.to(dtype), layer.mask)
    got = layer.run(layer.hidden, layer.mask)
    real = layer.real(layer.hidden, layer.mask)
    what = f"in {layer.case.dtype}, output"
    layer.expect(got, expected, real, what, f"the same call in {wide}")


def _has_reference(subject: LayerSubject) -> str | None:
    if subject.spec.reference is None:
        return (
            "declares no reference in Python floats: a wrong but self-consistent formula would pass"
        )
    return supports("float64")(subject)


@layer_invariant(
    masks=_MASKS, regimes=("normal",), dtypes=("float32", "float64"), applies=_has_reference
)
def layer_agrees_with_reference(layer: LayerCase) -> None:
    """In float64 the output is that of the layer's reference in Python floats."""
    module, hidden = copied(layer.module).double(), layer.hidden.double()
    with torch.no_grad(), NormEpsilon(layer.hidden.dtype):
        got = layer.subject.call(module, hidden, layer.mask)[0]
    real = layer.real(hidden, layer.mask)
    expected = _referred(layer.subject, module, hidden, real)
    if expected.shape != got.shape:
        raise InvariantViolation(
            f"reference= gives rows of shape {tuple(expected.shape[1:])}, but should give "
            f"{tuple(got.shape[1:])}, one row a token"
        )
    other = "the reference in Python floats"
    layer.expect(got, expected.to(got), real, "output", other)


def _referred(subject: LayerSubject, module: nn.Module, hidden: Tensor, real: Tensor) -> Tensor:
    """What a layer's reference gives, in float64."""
    reference = subject.spec.reference
    assert reference is not None
    rows = [
        reference(module, item.tolist(), own.flatten().tolist())
        for item, own in zip(hidden, real, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.float64)
