"""Invariants on what a module keeps: nothing of earlier calls, or of other modules."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.spaces import CaseStrategy
from attnbench.errors import InvariantViolation, RefusalError
from attnbench.invariants.calls.kept_state import (
    called_before_a_step,
    called_beside_others,
    has_no_parameters,
    kept_state_cases,
)
from attnbench.invariants.toolkit.decorator import hook_of, invariant
from attnbench.invariants.toolkit.layer_calls import LayerCase, layer_cases, layer_invariant
from attnbench.invariants.toolkit.layer_faults import mixes_items
from attnbench.specs import KINDS
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject

_MASKS = ("none", "padding")


@layer_invariant(masks=_MASKS, regimes=("normal",))
def layer_calls_leave_no_trace(layer: LayerCase) -> None:
    """A module that was called on other inputs and masks gives what a new one gives."""
    state = {name: tensor.clone() for name, tensor in layer.module.state_dict().items()}
    told = "called after other inputs of the same shapes, output"
    for number in (1, 2, 3):
        case, masks = layer.case, layer.subject.masks
        mask = masks[number % len(masks)] if number < 3 else case.mask
        length = case.q_len if number < 3 else min(case.q_len + 3, layer.subject.capacity)
        other = case.replace(seed=case.seed + number, mask=mask, q_len=length, kv_len=length)
        inputs = layer.subject.inputs(layer.subject.legal(other))
        got = layer.run(inputs.hidden, inputs.padding_mask)
        fresh = LayerCase(layer.subject, case)
        expected = fresh.run(inputs.hidden, inputs.padding_mask)
        fresh.hidden, fresh.mask = inputs.hidden, inputs.padding_mask
        real = layer.real(inputs.hidden, inputs.padding_mask)
        fresh.expect(got, expected, real, told, "a new module")
    fresh = LayerCase(layer.subject, layer.case)
    got, expected = (one.run(layer.hidden, layer.mask) for one in (layer, fresh))
    layer.expect(got, expected, layer.real(layer.hidden, layer.mask), told, "a new module")
    _other_weights(layer)
    for name, tensor in layer.module.state_dict().items():
        if name not in state or not torch.equal(tensor, state[name]):
            raise InvariantViolation(
                f"state_dict()[{name!r}] was changed by calls in evaluation mode, but should stay "
                "as it is: the same inputs would not give the same output"
            )


def _other_weights(layer: LayerCase) -> None:
    """Compare a module with other weights with its output for the same tokens in a larger batch."""
    if mixes_items(layer.subject):
        return
    other = LayerCase(layer.subject, layer.case.replace(seed=layer.case.seed + 1))
    other.hidden, other.mask = layer.hidden, layer.mask
    got = other.run(layer.hidden, layer.mask)
    hidden = torch.cat([layer.hidden, layer.other(layer.hidden[:1])])
    mask = layer.mask
    if mask is not None:
        mask = torch.cat([mask, torch.ones_like(mask[:1])])
    expected = other.run(hidden, mask)[:-1]

    def allowed() -> Tensor:  # of the larger batch: what was kept of the smaller one may be stale
        return other.limits(hidden, mask)[:-1]

    real = layer.real(layer.hidden, layer.mask)
    found = other.differs(got, expected, real, allowed)
    if found is not None:
        fresh = hidden.flip(-1)  # of which nothing can be kept
        alone, among = layer.run(fresh[:-1], layer.mask), layer.run(fresh, mask)[:-1]
        if layer.differs(among, alone, real, allowed) is not None:
            return  # what is kept of earlier calls is not the reason: the other item is
        told = "of a module with other weights, called on the same inputs, output"
        layer.accuse(found, got, expected, told, "the same items in a larger batch")


def _few_cases(subject: Subject) -> CaseStrategy:
    if subject.kind != "layer":
        return kept_state_cases(subject)
    return layer_cases(subject, masks=_MASKS, regimes=("normal",), dtypes=("float32",))


@invariant(kinds=KINDS, cases=_few_cases)
def other_modules_change_nothing(subject: Subject, case: Case) -> None:
    """Making and calling another module of another size changes no output."""
    if subject.kind != "layer":
        called_beside_others(subject, case)
        return
    layer = LayerCase(subject, case)
    expected = layer.run(layer.hidden, layer.mask)
    sizes = _other_sizes(layer.subject, case.query_size)
    if not sizes:
        raise RefusalError("all its modules have one size")
    for size in sizes:
        other = layer.subject.legal(case.replace(query_size=size, seed=case.seed + 1))
        beside = LayerCase(subject, other)
        beside.run(beside.hidden, beside.mask)
        got = layer.run(layer.hidden, layer.mask)
        told = f"after a module of E={other.query_size} was made and called, output"
        real = layer.real(layer.hidden, layer.mask)
        layer.expect(got, expected, real, told, "the same call before")


def _other_sizes(subject: LayerSubject, own: int) -> list[int]:
    legal = (
        subject.legal(Case((1,), 3, 3, size, size, size)).query_size
        for size in (2 * own, 4 * own, max(1, own // 2), 8, 16)
    )
    return [size for size in dict.fromkeys(legal) if size != own]


@invariant(
    kinds=KINDS,
    cases=_few_cases,
    applies=lambda subject: None if subject.kind == "layer" else has_no_parameters(subject),
)
def changed_parameters_are_used(subject: Subject, case: Case) -> None:
    """After a step of its parameters a module gives what one that had them from the start gives."""
    if subject.kind != "layer":
        called_before_a_step(subject, case)
        return
    layer, fresh = LayerCase(subject, case), LayerCase(subject, case)
    layer.run(layer.hidden, layer.mask)
    with torch.no_grad():
        for old, new in zip(layer.module.parameters(), fresh.module.parameters(), strict=True):
            if old.is_floating_point():
                step = layer.other(old) * old.abs().mean() / 2
                old.add_(step)
                new.add_(step)
    got, expected = (one.run(layer.hidden, layer.mask) for one in (layer, fresh))
    told = "after a call and a step of all parameters, output"
    real, other = (
        layer.real(layer.hidden, layer.mask),
        "a module with these parameters from the start",
    )
    fresh.expect(got, expected, real, told, other)


attnbench_invariants = hook_of(__name__)
