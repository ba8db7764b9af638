"""A failure run again: the calls that its check makes of the subject, and what it compares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.errors import InvariantViolation, UsageError
from attnbench.specs import Invariant, KernelSpec
from attnbench.subject.devices import seeded
from attnbench.subject.subject import Subject


@dataclass(frozen=True)
class SubjectCall:
    """One call of a subject, as it was before.

    Args:
        function: the module, or the function of a kernel.
        args, kwargs: copies of the arguments.
        output: what it returned; a copy of its first tensor.
        state: state of torch's global generator before the call.
        grad: whether gradients were recorded.
        training: whether the module was in training.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor | None
    state: Tensor
    grad: bool
    training: bool

    def again(self) -> Tensor | None:
        """The output of the same call, made again."""
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(self.grad):
            torch.set_rng_state(self.state)
            args, kwargs = copied((self.args, self.kwargs))
            return first_tensor(self.function(*args, **kwargs))


@dataclass(frozen=True)
class Comparison:
    """What a failing check compares.

    Args:
        calls: the calls of the subject, in order.
        got, expected: the compared tensors; ``None`` where something else is compared.
        at: index of the worst element.
        allowed: largest allowed difference there.
        violation: what the check raised.
    """

    calls: tuple[SubjectCall, ...]
    got: Tensor | None
    expected: Tensor | None
    at: tuple[int, ...]
    allowed: float | None
    violation: InvariantViolation = field(repr=False)


def replay(subject: Subject, failure: Failure) -> Comparison:
    """Run the check of a failure again, at its case.

    Args:
        subject: the subject that failed.
        failure: a failure with a case.

    Raises:
        UsageError: it has no case, or does not fail again.
    """
    if failure.case is None:
        raise UsageError(f"the failure of {failure.invariant} has no case to run again.")
    (invariant,) = select_invariants([failure.invariant])
    return replayed(subject, invariant, Case.from_id(failure.case))


def replayed(subject: Subject, invariant: Invariant, case: Case) -> Comparison:
    """The same of an invariant, which need not be registered, and a case."""
    calls: list[SubjectCall] = []
    with seeded():
        try:
            with _recorded(subject, calls) as watched:
                invariant.check(watched, case)
        except InvariantViolation as violation:
            compared = violation.compared or {}
            got, expected = compared.get("got", compared.get("values")), compared.get("expected")
            made = (violation.place, violation.allowed, violation)
            return Comparison(tuple(calls), got, expected, *made)
    raise UsageError(f"{invariant.name} on {subject.name} does not fail again at {case.id}.")


@contextmanager
def _recorded(subject: Subject, calls: list[SubjectCall]) -> Iterator[Subject]:
    """Record the outermost calls of modules, or of the function of a kernel."""
    original: Callable[..., Any] = nn.Module.__call__
    depth = 0

    def recording(function: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:
                return run(*args, **kwargs)
            depth += 1
            try:
                state = torch.get_rng_state()
                given: tuple[tuple[Any, ...], dict[str, Any]] = copied((args, kwargs))
                is_training = bool(getattr(function, "training", False))
                result = run(*args, **kwargs)
                output = first_tensor(result)
                kept = None if output is None else output.detach().clone()
                grad = torch.is_grad_enabled()
                calls.append(SubjectCall(function, *given, kept, state, grad, is_training))
                return result
            finally:
                depth -= 1

        return record

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        def run(*args: Any, **kwargs: Any) -> Any:
            return original(module, *args, **kwargs)

        return recording(module, run)(*args, **kwargs)

    watched = subject
    if isinstance(subject.spec, KernelSpec):
        attend = subject.spec.attend
        watched = replace(subject, spec=replace(subject.spec, attend=recording(attend, attend)))
    nn.Module.__call__ = call  # type: ignore[method-assign]  # put back below
    try:
        yield watched
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]  # as it was


def first_tensor(result: Any) -> Tensor | None:
    """The first tensor of what a call returned."""
    first = result[0] if isinstance(result, tuple | list) and result else result
    return first if isinstance(first, Tensor) else None


def copied(values: Any) -> Any:
    """Copies of tensors and of whatever holds them; what cannot be copied stays as it is."""

    def one(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.detach().clone().requires_grad_(value.requires_grad)
        if isinstance(value, nn.Module):
            return value
        try:
            with torch.no_grad():
                return copy.deepcopy(value)
        except Exception:
            return value

    return tree_map(one, values)
