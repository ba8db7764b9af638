"""Invariants on ways to run a layer: on no tokens, in half types, by its other methods."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError, InvariantViolation, RefusalError
from attnbench.hookspecs import hookimpl
from attnbench.invariants.caches.checks import has_cache
from attnbench.invariants.toolkit.comparisons import (
    agree_within,
)
from attnbench.invariants.toolkit.layer_calls import Look, layer_cases
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.oracle.references import NormEpsilon
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__: list[str] = []

_MASKS = ("none", "padding")


def _empty(subject: Subject, case: Case) -> None:
    look = Look(subject, case)
    nothing = look.hidden[:, :0]
    refusals: list[str] = []
    with _refused(subject, "a call on no tokens", refusals):
        look.run(nothing)
    if look.subject.spec.cache is not None and has_cache(subject) is None:
        told = "a call with a cache on no tokens"
        half = max(1, case.q_len // 2)
        parts = look.hidden[:, :half], look.hidden[:, half:]
        outputs = []
        limits = rounding_of(look.subject, look.module, look.hidden)
        with _refused(subject, told, refusals), torch.no_grad():
            for empty in (False, True):
                cache = look.subject.new_cache(look.module, case.lead[0])
                _, cache = look.subject.call(look.module, parts[0], None, cache)
                if empty:
                    _, cache = look.subject.call(look.module, nothing, None, cache)
                outputs.append(look.subject.call(look.module, parts[1], None, cache)[0])
            expected, got = outputs
            whole = look.run(look.hidden)[:, half:]
            if look.differs(expected, whole, look.real(whole), lambda: limits[:, half:]):
                return  # calls_may_be_cut_anywhere tells
            allowed = floor_of(look.subject, expected)
            agree_within(got, expected, allowed, f"after {told}, output", "the call without it")
    if refusals:
        raise RefusalError(refusals[0])


@contextlib.contextmanager
def _refused(subject: Subject, told: str, refusals: list[str]) -> Iterator[None]:
    """Note an exception as a refusal, which harms nobody; a wrong answer stays a violation."""
    try:
        yield
    except InvariantViolation:
        raise
    except AttnbenchError as error:
        raise InvariantViolation(f"{told}: {error}") from error
    except Exception as error:
        refusals.append(f"it refuses {told} ({type(error).__name__})")


def _half(subject: Subject, case: Case) -> None:
    look = Look(subject, case)
    wide = "float64" if "float64" in subject.dtypes else "float32"
    dtype = getattr(torch, wide)
    with torch.no_grad(), NormEpsilon(look.hidden.dtype):
        module = copy.deepcopy(look.module).to(dtype)
        expected, _ = look.subject.call(module, look.hidden.to(dtype), look.mask)
    got = look.run(look.hidden, look.mask)
    found = look.differs(got, expected, look.real(look.hidden, look.mask))
    if found is not None:
        look.accuse(found, got, expected, f"in {case.dtype}, output", f"the same call in {wide}")


def _has_half(subject: Subject) -> str | None:
    if not {"float16", "bfloat16"} & set(subject.dtypes):
        return "it supports no half type"
    if not {"float64", "float32"} & set(subject.dtypes):
        return "it supports nothing wider to compare with"
    return None


def _half_cases(subject: Subject) -> SearchStrategy[Case]:
    longest = Case((1,), 320, 320, 16, 16, 16)  # where bfloat16 tells no positions apart
    return layer_cases(
        subject,
        masks=_MASKS,
        regimes=("normal",),
        dtypes=("bfloat16", "float16"),
        beyond=(longest.replace(dtype="bfloat16"), longest.replace(dtype="float16")),
    )


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on ways to run a layer."""
    yield Invariant(
        name="empty_calls_are_harmless",
        statement="A call on no tokens gives none and leaves a cache as it was, or is refused.",
        check=_empty,
        kinds=("layer",),
        cases=lambda subject: layer_cases(subject, regimes=("normal",), min_q_len=2),
    )
    yield Invariant(
        name="half_types_agree",
        statement="In a half type the output is that of a wide one, within 4 times what one unit "
        "in the last place at every submodule's output changes.",
        check=_half,
        kinds=("layer",),
        cases=_half_cases,
        applies=_has_half,
    )
