"""A failure run again: the calls that its check makes of the subject, and what it compares."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from attnbench.cases.case import Case
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.errors import InvariantViolation, UsageError
from attnbench.specs import KernelSpec, LayerSpec
from attnbench.subject import scoring_subject
from attnbench.subject.devices import seeded
from attnbench.subject.subject import Subject

CACHE_CALLS = ("new", "select", "crop", "length")
"""The operations of a cache, whose calls are recorded by name."""


@dataclass(frozen=True, eq=False)
class SubjectCall:
    """One call of a subject, as it was before.

    Args:
        name: ``module``, ``attend`` (of attnbench, or a kernel) or the operation of a cache.
        function: the module, or the function of a kernel or a cache.
        args, kwargs: copies of the arguments.
        given: the arguments themselves, by which what an earlier call gave is known.
        parameters: copies of the parameters and buffers of a module by name.
        state: state of torch's global generator before the call.
        grad: whether gradients were recorded.
        number: its number among the calls of a check.
        result: what it returned.
        outputs: copies of the tensors that it returned, by their places in a tuple.
        error: what it raised.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    given: tuple[tuple[Any, ...], dict[str, Any]]
    parameters: dict[str, Tensor]
    state: Tensor
    grad: bool
    number: int
    result: Any = None
    outputs: Mapping[int, Tensor] = field(default_factory=dict)
    error: BaseException | None = None

    def again(self, mode: AbstractContextManager[Any]) -> dict[int, Tensor]:
        """The outputs of the same call, made again under a mode that listens."""
        args, kwargs = copied((self.args, self.kwargs))
        with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(self.grad):
            torch.set_rng_state(self.state)
            with mode:
                return _tensors_of(self.function(*args, **kwargs))

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors that it was given."""
        values = (*self.args, *self.kwargs.values())
        return [value for value in values if isinstance(value, Tensor)]

    @property
    def known_tensors(self) -> list[Tensor]:
        """These and the parameters: all that no earlier call has made."""
        return [*self.tensors, *self.parameters.values()]


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
    violation: BaseException = field(repr=False)


@dataclass(frozen=True)
class Row:
    """A row of an output of a call, which is part of what was compared."""

    call: SubjectCall
    which: int
    place: tuple[int, ...]

    @property
    def output(self) -> Tensor:
        """The output that it is a row of."""
        return self.call.outputs[self.which]


def row_of(compared: Tensor | None, comparison: Comparison) -> Row | None:
    """Where the last call that gave the row of the worst element holds it, if one has."""
    if compared is None or compared.dim() == 0:
        return None
    row, found = compared.detach()[comparison.at[:-1]], list[Row]()
    for call in reversed(comparison.calls):
        for which, output in call.outputs.items():
            if output.dim() and output.shape[-1:] == row.shape:
                same = ((output == row) | (output.isnan() & row.isnan())).all(-1)
                found += [Row(call, which, tuple(at)) for at in same.nonzero().tolist()[::-1]]
    own = [one for one in found if one.place == comparison.at[:-1]]  # of equal rows the likeliest
    return next(iter(own or found), None)


def replay(subject: Subject, failure: Failure) -> Comparison:
    """Run the check of a failure again, at its case.

    Args:
        subject: the subject that failed.
        failure: a failure with a case.

    Raises:
        UsageError: it has no case, or does not fail again.
        Exception: the subject raised it.
    """
    comparison = replayed(subject, failure)
    if not isinstance(comparison.violation, InvariantViolation):
        raise comparison.violation
    return comparison


def replayed(subject: Subject, failure: Failure) -> Comparison:
    """The same; what an exception of the subject ended has nothing that is compared."""
    if failure.case is None:
        raise UsageError(f"the failure of {failure.invariant} has no case to run again.")
    (invariant,), case = select_invariants([failure.invariant]), Case.from_id(failure.case)
    with seeded():
        calls, error = _run(subject, lambda watched: invariant.check(watched, case))
        again = (getattr(error, "compared", None) or {}).get("again")
        if again is not None:  # of what a check has tried, only that which failed
            calls, error = _run(subject, again)
    if error is None:
        raise UsageError(f"{invariant.name} on {subject.name} does not fail again at {case.id}.")
    if not isinstance(error, InvariantViolation):
        return Comparison(tuple(calls), None, None, (), None, error)
    compared = error.compared or {}
    got, expected = compared.get("got", compared.get("values")), compared.get("expected")
    return Comparison(tuple(calls), got, expected, error.place, error.allowed, error)


def _run(
    subject: Subject, check: Callable[[Subject], object]
) -> tuple[list[SubjectCall], BaseException | None]:
    """The calls that a check makes, and what it raises."""
    calls: list[SubjectCall] = []
    try:
        with _recorded(subject, calls) as watched:
            check(watched)
    except (Exception, SystemExit) as error:
        return calls, error
    return calls, None


@contextmanager
def _recorded(subject: Subject, calls: list[SubjectCall]) -> Iterator[Subject]:
    """Record the outermost calls of modules, of the function of a kernel, and of a cache."""
    original: Callable[..., Any] = nn.Module.__call__
    depth = 0

    def recording(name: str, function: Callable[..., Any], run: Any = None) -> Callable[..., Any]:
        def record(*args: Any, **kwargs: Any) -> Any:
            nonlocal depth
            if depth:
                return (run or function)(*args, **kwargs)
            depth += 1
            call = _call_of(name, function, args, kwargs, len(calls))
            try:
                result = (run or function)(*args, **kwargs)
                kept = {n: t.detach().clone() for n, t in _tensors_of(result).items()}
                calls.append(replace(call, result=result, outputs=kept))
                return result
            except BaseException as error:
                calls.append(replace(call, error=error))
                raise
            finally:
                depth -= 1

        return record

    def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return recording("module", module, original.__get__(module))(*args, **kwargs)

    watched, spec = subject, subject.spec
    if isinstance(spec, KernelSpec):
        watched = replace(subject, spec=replace(spec, attend=recording("attend", spec.attend)))
    elif isinstance(spec, LayerSpec) and spec.cache is not None:
        known = {name: getattr(spec.cache, name) for name in CACHE_CALLS}
        own: Any = {name: recording(name, one) for name, one in known.items() if one is not None}
        watched = replace(subject, spec=replace(spec, cache=replace(spec.cache, **own)))
    holder: Any = scoring_subject
    attend = holder.attend
    nn.Module.__call__ = call  # type: ignore[method-assign]  # put back below
    if subject.kind == "scoring":
        holder.attend = recording("attend", attend)
    try:
        yield watched
    finally:
        holder.attend = attend
        nn.Module.__call__ = original  # type: ignore[method-assign]  # as it was


def _call_of(name: str, function: Any, args: Any, kwargs: Any, number: int) -> SubjectCall:
    own = function.state_dict() if isinstance(function, nn.Module) else {}
    own_args, own_kwargs = copied((args, kwargs))
    return SubjectCall(
        name,
        function,
        own_args,
        own_kwargs,
        (args, kwargs),
        {n: t.detach().clone() for n, t in own.items() if not nn.parameter.is_lazy(t)},
        torch.get_rng_state(),
        torch.is_grad_enabled(),
        number,
    )


def _tensors_of(result: Any) -> dict[int, Tensor]:
    """The tensors that a call returned, by their places in a tuple."""
    parts = result if isinstance(result, tuple | list) else (result,)
    return {place: part for place, part in enumerate(parts) if isinstance(part, Tensor)}


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
