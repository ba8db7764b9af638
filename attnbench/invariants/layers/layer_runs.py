"""Invariants on ways to run a layer: again, on no tokens, under checkpointing, through a cache."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnbench.cases.case import Case
from attnbench.errors import AttnbenchError, InvariantViolation, RefusalError
from attnbench.hookspecs import hookimpl
from attnbench.invariants.caches.checks import has_cache
from attnbench.invariants.toolkit.comparisons import (
    agree_within,
    differentiate,
    reject,
    same_gradient,
)
from attnbench.invariants.toolkit.layer_calls import Look, has_gradients, layer_cases
from attnbench.invariants.toolkit.layer_faults import mixes_items
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.oracle.references import NormEpsilon
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__: list[str] = []

_MASKS = ("none", "padding")


def _no_trace(subject: Subject, case: Case) -> None:
    look = Look(subject, case)
    state = {name: tensor.clone() for name, tensor in look.module.state_dict().items()}
    told = "called after other inputs of the same shapes, output"
    for number in (1, 2, 3):
        masks = look.subject.masks
        mask = masks[number % len(masks)] if number < 3 else case.mask
        length = case.q_len if number < 3 else min(case.q_len + 3, look.subject.capacity)
        other = case.replace(seed=case.seed + number, mask=mask, q_len=length, kv_len=length)
        inputs = look.subject.inputs(look.subject.legal(other))
        got = look.run(inputs.hidden, inputs.padding_mask)
        fresh = Look(subject, case)
        expected = fresh.run(inputs.hidden, inputs.padding_mask)
        fresh.hidden, fresh.mask = inputs.hidden, inputs.padding_mask
        real = look.real(inputs.hidden, inputs.padding_mask)
        found = fresh.differs(got, expected, real)
        if found is not None:
            look.accuse(found, got, expected, told, "a new module")
    got, expected = (
        look.run(look.hidden, look.mask),
        Look(subject, case).run(look.hidden, look.mask),
    )
    found = look.differs(got, expected, look.real(look.hidden, look.mask))
    if found is not None:
        look.accuse(found, got, expected, told, "a new module")
    _other_weights(look)
    for name, tensor in look.module.state_dict().items():
        if name not in state or not torch.equal(tensor, state[name]):
            raise InvariantViolation(
                f"state_dict()[{name!r}] was changed by calls in evaluation mode, but should stay "
                "as it is: the same inputs would not give the same output"
            )


def _other_weights(look: Look) -> None:
    """Compare a module with other weights with its output for the same tokens in a larger batch."""
    if mixes_items(look.subject):
        return
    other = Look(look.subject, look.case.replace(seed=look.case.seed + 1))
    other.hidden, other.mask = look.hidden, look.mask
    got = other.run(look.hidden, look.mask)
    hidden = torch.cat([look.hidden, look.other(look.hidden[:1])])
    mask = look.mask
    if mask is not None:
        mask = torch.cat([mask, torch.ones_like(mask[:1])])
    expected = other.run(hidden, mask)[:-1]

    def allowed() -> Tensor:  # of the larger batch: what was kept of the smaller one may be stale
        return rounding_of(other.subject, other.module, hidden, mask)[:-1]

    found = other.differs(got, expected, look.real(look.hidden, look.mask), allowed)
    if found is not None:
        told = "of a module with other weights, called on the same inputs, output"
        look.accuse(found, got, expected, told, "the same items in a larger batch")


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
        with _refused(subject, told, refusals), torch.no_grad():
            for empty in (False, True):
                cache = look.subject.new_cache(look.module, case.lead[0])
                _, cache = look.subject.call(look.module, parts[0], None, cache)
                if empty:
                    _, cache = look.subject.call(look.module, nothing, None, cache)
                outputs.append(look.subject.call(look.module, parts[1], None, cache)[0])
            expected, got = outputs
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


def _checkpointed(subject: Subject, case: Case) -> None:
    look = Look(subject, case)
    look.module.train()
    gradients, outputs = [], []
    for how in ("plain", "checkpointed"):
        torch.default_generator.manual_seed(case.seed)
        hidden = look.hidden.detach().clone().requires_grad_()

        def run(given: Tensor) -> Tensor:
            return look.subject.call(look.module, given, look.mask)[0]

        output = run(hidden) if how == "plain" else checkpoint(run, hidden, use_reentrant=False)
        assert isinstance(output, Tensor)
        if not output.requires_grad:
            reject("the output has no graph")
        real = look.real(look.hidden, look.mask)
        output = torch.where(real, output, torch.zeros_like(output))
        weight = torch.ones_like(output)
        wanted = [hidden, *(p for p in look.module.parameters() if p.requires_grad)]
        gradients.append(differentiate(output, wanted, weight))
        outputs.append(output.detach())
    allowed = floor_of(look.subject, outputs[0])
    what, other = "under torch.utils.checkpoint, output", "the call without it"
    agree_within(outputs[1], outputs[0], allowed, what, other)
    for one, two in zip(gradients[1], gradients[0], strict=True):
        same_gradient(one, two, "under torch.utils.checkpoint, a gradient", other)


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


def _through_cache(subject: Subject, case: Case) -> None:
    look = Look(subject, case)
    if case.q_len < 3:
        reject("one token has no past")
    cut = 1 + look.choose(case.q_len - 2)
    hidden = look.hidden.detach().clone().requires_grad_()
    cache = look.subject.new_cache(look.module, case.lead[0])
    _, cache = look.subject.call(look.module, hidden[:, :cut], None, cache)
    output, _ = look.subject.call(look.module, hidden[:, cut:], None, cache)
    again = look.hidden.detach().clone().requires_grad_()
    whole, _ = look.subject.call(look.module, again)
    if not (output.requires_grad and whole.requires_grad):
        reject("the output has no graph")
    expected = whole[:, cut:]

    def allowed() -> Tensor:
        return rounding_of(look.subject, look.module, look.hidden)[:, cut:]

    if look.differs(output.detach(), expected.detach(), look.real(output), allowed) is not None:
        return  # of which another invariant tells
    weight = look.other(output.detach())
    try:
        (got,) = differentiate(output, [hidden], weight)
    except InvariantViolation as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise RefusalError("it is written in place, where autograd raises") from error
    (want,) = differentiate(expected, [again], weight)
    if got is None or want is None:
        return
    tolerance = 1024 * torch.finfo(torch.float32).eps * max(float(want.abs().amax()), 1.0)
    told = f"with a cache that holds {cut}, the gradient of the new outputs by the"
    if bool(got[:, :cut].any()):  # a cache may stop them, those of the new keys and values too
        agree_within(got[:, :cut], want[:, :cut], tolerance, f"{told} past hidden", "one call")
        agree_within(got[:, cut:], want[:, cut:], tolerance, f"{told} new hidden", "one call")


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on ways to run a layer."""
    yield Invariant(
        name="layer_calls_leave_no_trace",
        statement="A module that was called on other inputs and masks gives what a new one gives.",
        check=_no_trace,
        kinds=("layer",),
        cases=lambda subject: layer_cases(subject, masks=_MASKS, regimes=("normal",)),
    )
    yield Invariant(
        name="empty_calls_are_harmless",
        statement="A call on no tokens gives none and leaves a cache as it was, or is refused.",
        check=_empty,
        kinds=("layer",),
        cases=lambda subject: layer_cases(subject, regimes=("normal",), min_q_len=2),
    )
    yield Invariant(
        name="checkpointing_changes_nothing",
        statement="Under torch.utils.checkpoint, output and gradients are the same.",
        check=_checkpointed,
        kinds=("layer",),
        cases=lambda subject: layer_cases(
            subject, masks=_MASKS, regimes=("normal",), dtypes=("float32",)
        ),
        applies=has_gradients,
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
    yield Invariant(
        name="cached_gradients_are_right_or_stopped",
        statement="Gradients through a cache equal those of one call, or a cache stops them all or "
        "makes autograd raise.",
        check=_through_cache,
        kinds=("layer",),
        cases=lambda subject: layer_cases(
            subject, regimes=("normal",), dtypes=("float32",), min_q_len=3
        ),
        applies=lambda subject: has_gradients(subject) or has_cache(subject),
    )
