"""Invariants on ways to run a layer: on no tokens, in half types, by its other methods."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError, InvariantViolation, RefusalError
from attnbench.invariants.caches.checks import has_cache
from attnbench.invariants.toolkit.comparisons import agree_within
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import Look, layer_cases
from attnbench.invariants.toolkit.layer_rounding import floor_of
from attnbench.oracle.references import NormEpsilon
from attnbench.specs import Invariant
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_MASKS = ("none", "padding")


@invariant(
    kinds=("layer",), cases=lambda subject: layer_cases(subject, regimes=("normal",), min_q_len=2)
)
def empty_calls_are_harmless(subject: Subject, case: Case) -> None:
    """A call on no tokens gives none and leaves a cache as it was, or is refused."""
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
        with _refused(subject, told, refusals), torch.no_grad():
            for empty in (False, True):
                cache = look.subject.new_cache(look.module, case.lead[0])
                _, cache = look.subject.call(look.module, parts[0], None, cache)
                if empty:
                    _, cache = look.subject.call(look.module, nothing, None, cache)
                outputs.append(look.subject.call(look.module, parts[1], None, cache)[0])
            expected, got = outputs
            whole = look.run(look.hidden)[:, half:]
            if look.differs(expected, whole, look.real(whole), lambda: look.rounding[:, half:]):
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


@invariant(kinds=("layer",), cases=_half_cases, applies=_has_half)
def half_types_agree(subject: Subject, case: Case) -> None:
    """In a half type the output is that of a wide one, within 4 times what one unit in the last
    place at every submodule's output changes.
    """
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


def _two_paths(law: str, statement: str) -> Invariant:
    """A law on two methods of a module that compute the same."""

    def check(subject: Subject, case: Case) -> None:
        look = Look(subject, case)
        names = look.subject.spec.paths[law]
        lacking = [name for name in names if not callable(getattr(look.module, name, None))]
        if lacking:
            raise InvariantViolation(
                f"paths[{law!r}] names {lacking[0]!r}, but the module has no such method"
            )
        paths = {n: look.module if n == "forward" else getattr(look.module, n) for n in names}
        one, two = names

        def judge(got: Tensor, start: int, told: str) -> None:
            expected = whole[:, start:]
            found = look.differs(got, expected, real[:, start:], lambda: look.rounding[:, start:])
            if found is not None:
                look.accuse(found, got, expected, f"{told}, output", f"one call of {one}")

        with torch.no_grad():
            whole = look.subject.call(paths[one], look.hidden, look.mask)[0]
            real = look.real(look.hidden, look.mask)
            judge(look.subject.call(paths[two], look.hidden, look.mask)[0], 0, f"by {two}")
            if look.subject.spec.cache is None or look.mask is not None or case.q_len < 2:
                return
            cut = 1 + look.choose(case.q_len - 1)
            for first, last in ((one, two), (two, one), (two, two)):
                cache = look.subject.new_cache(look.module, case.lead[0])
                hidden = look.hidden[:, :cut], look.hidden[:, cut:]
                _, cache = look.subject.call(paths[first], hidden[0], None, cache)
                got, _ = look.subject.call(paths[last], hidden[1], None, cache)
                judge(got, cut, f"{cut} tokens by {first} and the rest by {last}")

    def applies(subject: Subject) -> str | None:
        assert isinstance(subject, LayerSubject)
        known = law in subject.spec.paths
        return None if known else f"names no methods: give paths={{{law!r}: (one, other)}}"

    return Invariant(
        name=law,
        statement=statement,
        check=check,
        kinds=("layer",),
        cases=_wide_cases,
        applies=applies,
        law=True,
    )


def _wide_cases(subject: Subject) -> SearchStrategy[Case]:
    return layer_cases(subject, masks=_MASKS, regimes=("normal",), dtypes=("float32", "float64"))


def _has_reference(subject: Subject) -> str | None:
    assert isinstance(subject, LayerSubject)
    if subject.spec.reference is None:
        return "declares no reference in Python floats: a wrong formula that is consistent passes"
    return None if "float64" in subject.dtypes else "float64 is not supported"


@invariant(kinds=("layer",), cases=_wide_cases, applies=_has_reference)
def layer_agrees_with_reference(subject: Subject, case: Case) -> None:
    """In float64 the output is that of the layer's reference in Python floats."""
    look = Look(subject, case)
    reference = look.subject.spec.reference
    assert reference is not None
    module, hidden = copy.deepcopy(look.module).double(), look.hidden.double()
    with torch.no_grad(), NormEpsilon(look.hidden.dtype):
        got = look.subject.call(module, hidden, look.mask)[0]
    real = look.real(hidden, look.mask)
    rows = [
        reference(module, item.tolist(), own.flatten().tolist())
        for item, own in zip(hidden, real, strict=True)
    ]
    expected = torch.tensor(rows, dtype=torch.float64)
    if expected.shape != got.shape:
        raise InvariantViolation(
            f"reference= gives rows of shape {tuple(expected.shape[1:])}, but should give "
            f"{tuple(got.shape[1:])}, one row a token"
        )
    found = look.differs(got, expected.to(got), real)
    if found is not None:
        look.accuse(found, got, expected, "output", "the reference in Python floats")


chunked_equals_recurrent = _two_paths(
    "chunked_equals_recurrent",
    "In chunks and step by step, all is the same: by each of two methods, and where one goes on "
    "from the other.",
)
absorbed_equals_expanded = _two_paths(
    "absorbed_equals_expanded",
    "With projections absorbed and expanded, all is the same: by each of two methods, and where "
    "one goes on from the other.",
)
attnbench_invariants = hook_of(__name__)
