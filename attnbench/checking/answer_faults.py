"""Faults of a subject's answer itself, whichever property is checked."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import cases
from attnbench.cases.domain import Domain
from attnbench.checking.outcomes import KEEPS_CONTRACT, Outcome
from attnbench.checking.plan import select_invariants
from attnbench.errors import AttnbenchError, DtypeError, RefusalError, ShapeError
from attnbench.processes.tracebacks import is_own_code, source_line_of
from attnbench.subject.devices import generator_of, other_random_states
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, largest


@dataclass(frozen=True)
class Fault:
    """A fault of an answer.

    Args:
        kind: ``raised``, ``form`` (it returned something else than an output), ``nan``,
            ``changes`` (its input) or ``random`` (the second answer differs).
        text: the fault with its values, in a sentence.
        error: the exception, if it raised.
    """

    kind: Literal["raised", "form", "nan", "changes", "random"]
    text: str
    error: BaseException | None = None


def fault_at(subject: Subject, case: Case) -> Fault | None:
    """The first fault of a subject's answer at a case, in evaluation mode; ``None`` without one."""
    try:
        module, inputs = subject.build(case)
        originals = {name: tensor.clone() for name, tensor in inputs.tensors()}
        first = subject.output(module, inputs)
        change = _change(inputs, originals)
        if change is not None:
            return Fault("changes", f"{subject.name} changes its input: {change}")
        generator = generator_of(case.device)
        state, others = generator.get_state(), other_random_states()
        repeat = subject.output(module, inputs)
        drawn = others != other_random_states() or not torch.equal(state, generator.get_state())
    except RefusalError:
        raise
    except (Exception, SystemExit) as error:
        is_form = isinstance(error, ShapeError | DtypeError)
        return Fault("form" if is_form else "raised", raised_text(subject, error), error)
    if bool(first.isnan().any()):
        index = _first_index(first.isnan())
        text = f"{subject.name} gives output{list(index)} = nan for finite inputs in {case.dtype}"
        return Fault("nan", text)
    return _random(subject, first, repeat, " (it draws random numbers in evaluation)" * drawn)


def raised_text(subject: Subject, error: BaseException) -> str:
    """A text about an exception that a subject raised on a legal input, with its location."""
    if isinstance(error, AttnbenchError):
        return str(error)
    message = str(error).strip().split("\n\n")[0]
    text = f"{subject.name} raised on a legal input: {type(error).__name__}: {message}"
    line = source_line_of(error)
    return f"{text} ({line})" if line else text


def _first_index(condition: Tensor) -> tuple[int, ...]:
    return tuple(condition.nonzero()[0].tolist())


def _change(inputs: Inputs, originals: dict[str, Tensor]) -> str | None:
    for name, tensor in inputs.tensors():
        original = originals[name]
        difference = (tensor != original) & ~(tensor.isnan() & original.isnan())
        if bool(difference.any()):
            index = _first_index(difference)
            return (
                f"{name}{list(index)} was {original[index].item():.6g} before a call and is "
                f"{tensor[index].item():.6g} after it"
            )
    return None


def _random(subject: Subject, first: Tensor, repeat: Tensor, drawn: str) -> Fault | None:
    if first.numel() == 0:
        return None
    # the order of sums on a device may account for a few units in the last place
    gap = (first.detach().double() - repeat.detach().double()).abs()
    difference = (gap > 64 * torch.finfo(first.dtype).eps * largest(first)) & (first != repeat)
    if not bool(difference.any()):
        return None
    index = _first_index(difference)
    values = f"{first[index].item():.6g}, then {repeat[index].item():.6g} for the same call"
    text = f"{subject.name} answers differently the second time: output{list(index)} = {values}"
    return Fault("random", text + drawn)


@dataclass(frozen=True)
class KnownFault:
    """A fault that the check of one property found, and that others need not tell again.

    Args:
        fault: the fault.
        case: the case at which it was found.
        domain: the cases of the contract.
        is_everywhere: whether no ordinary call is without a fault.
        told_by: name of the property that tells it.
    """

    fault: Fault
    case: Case
    domain: Domain
    is_everywhere: bool
    told_by: str

    @property
    def text(self) -> str:
        """What calls with this fault do."""
        return f"calls {self._deed}, as {self.told_by} tells"

    @property
    def note(self) -> str:
        """What other properties do not look at."""
        return f"other properties in calls that {self._deed}"

    @property
    def _deed(self) -> str:
        error = self.fault.error
        if self.fault.kind != "raised" or error is None:
            return _DEEDS[self.fault.kind]
        line = source_line_of(error)
        return f"raise {type(error).__name__}" + (f" at {line}" if line else "")

    def is_met(self, subject: Subject, case: Case, error: BaseException) -> bool:
        """Whether a check at a case ended with it, in whichever call.

        An exception is the same if it has the same type and comes from the same line. Other faults
        are, if the call of the case has such a fault, with a mask and values that the contract has.
        """
        if self.fault.error is not None:
            return _place_of(self.fault.error) in map(_place_of, _chain(error))
        is_wider = self.case.is_narrow and not case.is_narrow
        mask = case.mask if case.mask in self.domain.masks else "none"
        regime = case.regime if case.regime in self.domain.regimes else "normal"
        plain = case.replace(mask=mask, regime=regime)
        return not is_wider and _kind_at(subject, plain) == self.fault.kind


_DEEDS = {
    "form": "return something else than an output",
    "nan": "give NaN",
    "changes": "change their input",
    "random": "give another answer the second time",
}

_ORDINARY = (
    Case((2, 3), 4, 6, 8, 6, 5),
    Case((2,), 3, 5, 4, 4, 4),
    Case((2,), 6, 6, 16, 16, 16),
)


def known_from(
    subject: Subject, outcome: Outcome, device: str = "cpu", dtypes: tuple[str, ...] = ()
) -> KnownFault | None:
    """What an outcome says of other properties' calls; ``None`` if nothing.

    That is a fault of the contract that is seen again, whether its own check found it, or that of
    another property in which the subject raised.
    """
    from attnbench.cases.case_space import space_of
    from attnbench.cases.space_parts import Space  # saves 0.3 s when listing subjects

    failure = outcome.failure
    if failure is None or failure.case is None:
        return None
    if outcome.invariant != KEEPS_CONTRACT and not failure.raised:
        return None
    case = Case.from_id(failure.case)
    fault = fault_at(subject, case)
    if fault is None:
        return None
    ordinary = (
        subject.legal(one.replace(dtype=name, device=device, mask=mask))
        for name in subject.dtypes
        for one in _ORDINARY
        for mask in ("none", "boolean")
        if not dtypes or name in dtypes
    )
    is_everywhere = not any(_kind_at(subject, one) == "" for one in ordinary)
    (contract,) = select_invariants([KEEPS_CONTRACT])
    (space,) = space_of((contract.cases or cases)(subject)).parts
    assert isinstance(space, Space)
    return KnownFault(fault, case, space.domain, is_everywhere, outcome.invariant)


def _kind_at(subject: Subject, case: Case) -> str:
    """The kind of fault at a case; empty without one, ``refused`` if it does not support it."""
    if subject.unsupported(case) is not None:
        return "refused"
    try:
        fault = fault_at(subject, case)
    except RefusalError:
        return "refused"
    return "" if fault is None else fault.kind


def _chain(error: BaseException | None) -> list[BaseException]:
    """An exception, and those by which, or while they were handled, it was raised."""
    found: list[BaseException] = []
    while error is not None and error not in found:  # one may be its own cause
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _place_of(error: BaseException) -> tuple[type, str, int | None]:
    """The type of an exception, and the line of the user's code, or else of any, that raised it."""
    frames = [*traceback.extract_tb(error.__traceback__)]
    own = [frame for frame in frames if is_own_code(frame.filename)]
    last = (own or frames)[-1] if frames else None
    return type(error), last.filename if last else "", last.lineno if last else None
