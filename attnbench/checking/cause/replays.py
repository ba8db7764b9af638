"""What a subject answers while a violated invariant runs again, and what explains that."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.cases.case_space import space_of
from attnbench.cases.case_strategies import cases
from attnbench.cases.space_parts import Space
from attnbench.checking.cause.failing_calls import fails_narrow
from attnbench.checking.cause.own_answers import STATED_BY
from attnbench.checking.cause.textbook_call import Call
from attnbench.checking.cause.weight_deviations import deviation
from attnbench.checking.cause.witnesses import (
    agree,
    compared,
    found_otherwise,
    mistaken,
    redrawn,
    reproduces,
)
from attnbench.checking.known_causes import cause_of_mistake, mistake_of, shown_by
from attnbench.checking.outcomes import COMPILING, Failure
from attnbench.oracle.textbook import is_textbook
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

Answer = tuple[nn.Module, Inputs, Tensor]
"""A module, the inputs of a call, and its output."""

_TELLING = 24
"""Fewest numbers in an output that tells one mistake from others."""

_MOST_ANSWERS = 6
"""Wrong answers that are explained."""

_FINE = 0.03
"""Share of the usual margin that the output of a mistake may be off by, in wide dtypes."""

_LARGE_SCORE = 20.0
"""Scores up to it leave every key some weight in all dtypes."""

_MOST_PAIRS = 2**15
"""Most query-key pairs in a call that is explained."""


def explains(mistake: str, subject: Subject, invariant: Invariant, failure: Failure) -> bool:
    """Whether a mistake of a subject explains a failure, which may have a cause of its own.

    It does if the invariant is about that mistake, or if the mistake reproduces a wrong output that
    the invariant got. A mistake that is not found by its output explains what fails in wide dtypes.
    """
    if mistake in STATED_BY:
        return invariant.name in STATED_BY[mistake]
    if invariant.name in shown_by(cause_of_mistake(mistake)):
        return True
    if cause_of_mistake(mistake) == "half_precision":
        return fails_narrow(failure)
    if mistake.startswith("gradient_"):
        return "gradient" in invariant.name + failure.quantity
    if mistake in found_otherwise(subject):
        return not fails_narrow(failure)
    answers = answers_at(subject, invariant, Case.from_id(failure.case or ""))
    with torch.no_grad():
        return any(_is_reproduced(mistake, subject, answer) for answer in answers)


def _is_reproduced(mistake: str, subject: Subject, answer: Answer) -> bool:
    """Whether the output of a call is wrong, and that of a mistake with the same cause."""
    cause = cause_of_mistake(mistake)
    with contextlib.suppress(Exception):  # a call may be of no textbook form
        call, output, margin = compared(subject, *answer)
        if not agree(output, call.compared(call.stages.output), margin):
            others = (other for name, other in mistaken(call) if cause_of_mistake(name) == cause)
            return any(reproduces(other, output, margin, empty=True) for other in others)
    return False


def answers_at(subject: Subject, invariant: Invariant, case: Case) -> list[Answer]:
    """The answers of a subject while an invariant fails at a case, as is known."""
    answers: list[Answer] = []
    watched = copy.copy(subject)

    def output(module: nn.Module, inputs: Inputs) -> Tensor:
        answer = subject.output(module, inputs)
        answers.append((module, inputs, answer.clone()))  # what comes later may write into it
        return answer

    object.__setattr__(watched, "output", output)
    with contextlib.suppress(Exception, SystemExit):
        invariant.check(watched, case)
    return answers


def made_at(subject: Subject, invariant: Invariant, failure: Failure) -> tuple[str, ...]:
    """The mistakes that reproduce all wrong outputs at a counterexample, if they have one cause.

    They must do so a second time, with other numbers, and other sizes if it goes wrong there too.
    So those are found that a subject makes at some sizes, dtypes or options alone. As many mistakes
    look alike at sizes of 1, these are widened first.
    """
    slow = invariant.name in COMPILING
    if failure.case is None or failure.raised or slow or subject.kind == "layer":
        return ()
    if subject.kind == "mechanism" and not is_textbook(subject):
        return ()
    for case in _wider(Case.from_id(failure.case)):
        if (names := _made(subject, invariant, case)) is None:
            continue
        again = (redrawn(case), case.replace(seed=case.seed + 100))  # some show at these sizes only
        found = (_made(subject, invariant, other) for other in again if names)
        kinds = {mistake_of(name) for name in next((f for f in found if f is not None), ())}
        names = {name for name in names if mistake_of(name) in kinds}
        for other in _of_other_kinds(subject, invariant, case) if len(names) > 1 else ():
            names = names & (_made(subject, invariant, other) or names) or names
        causes = set(map(cause_of_mistake, names))
        return tuple(sorted(names)) if len(causes) == 1 else ()
    return ()


def _made(subject: Subject, invariant: Invariant, case: Case) -> set[str] | None:
    """The mistakes that reproduce all wrong outputs at a case; ``None`` if none is wrong."""
    case = subject.legal(case)
    if case.q_len * case.kv_len > _MOST_PAIRS or subject.unsupported(case) is not None:
        return None
    with torch.no_grad():
        return _common(subject, answers_at(subject, invariant, case))


def _of_other_kinds(subject: Subject, invariant: Invariant, case: Case) -> Iterator[Case]:
    """The case with other values of the option that an invariant is about."""
    for part in space_of((invariant.cases or cases)(subject)).parts[:1]:
        variants = part.domain.variants if isinstance(part, Space) else {}
        yield from (
            case.tried(**{name: other})
            for name in ("kind", "by")
            for other in variants.get(name, ())
            if other != case.variant(name, str(other))
        )


def _wider(case: Case) -> Iterator[Case]:
    """The case with more features, and with more items, queries and keys if it has few."""
    q_len, kv_len = (5, 5) if case.q_len == case.kv_len else (4, 6)
    if case.q_len > case.kv_len:
        q_len, kv_len = kv_len, q_len
    features = {"query_size": 8, "key_size": 8, "value_size": 5}
    wide = {name: max(getattr(case, name), size) for name, size in features.items()}
    lead = case.lead if len(case.lead) > 1 else (2, 3)
    more = {"q_len": max(case.q_len, q_len), "kv_len": max(case.kv_len, kv_len), **wide}
    for changes in ({"lead": lead, **more}, more, {"lead": lead, **wide}, wide):
        yield case.replace(**changes)
    names = ("q_len", "kv_len", *features)  # sizes that are equal, or in an order, stay so
    yield case.replace(**{name: getattr(case, name) + 4 for name in names})
    yield case.replace(**{**wide, "lead": (2, 3), "kv_len": max(case.kv_len, kv_len)})


def _common(subject: Subject, answers: list[Answer]) -> set[str] | None:
    """The mistakes that reproduce every wrong answer that tells; ``None`` without one."""
    common: set[str] | None = None
    wrong_count = 0
    for answer in answers:
        with contextlib.suppress(Exception):  # a call may be of no textbook form
            call, output, margin = compared(subject, *answer)
            expected = call.compared(call.stages.output)
            if call.inputs.query.dtype not in (torch.float16, torch.bfloat16):
                margin *= _FINE
            is_zero = bool((output.abs() <= margin).all())  # as many mistakes make constant values
            numbers = int(output.isfinite().sum())  # NaN in hidden slots comes of many mistakes
            if numbers < _TELLING or is_zero or agree(output, expected, margin):
                continue
            names = {
                name
                for name, other in mistaken(call)
                if reproduces(other, output, margin) and not agree(other, expected, 4 * margin)
            }
            if not names and _unwritten(call, output, expected, margin):
                names = {"rows_unwritten"}
            if not names and call.scaled and (name := deviation(subject, *answer[:2])) is not None:
                names = {name}
            common = names if common is None else common & names
            wrong_count += 1
            if not common or wrong_count == _MOST_ANSWERS:
                break
    return common


def _unwritten(call: Call, output: Tensor, expected: Tensor, margin: float) -> bool:
    """Whether some rows are 0 that should not be, all others right, and no weight underflows."""
    lost = (output == 0).all(-1, keepdim=True) & (expected != 0).any(-1, keepdim=True)
    is_some = 0 < int(lost.sum()) < lost.numel()
    is_plain = bool((call.stages.scores + call.stages.bias).abs().max() < _LARGE_SCORE)
    return is_some and is_plain and agree(expected.masked_fill(lost, 0.0), output, margin)
