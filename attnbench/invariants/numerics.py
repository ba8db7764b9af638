"""Invariants on numbers: outputs agree with two references, within what rounding may cost.

The references are Python floats, one pair of query and key at a time, and a vectorised float64
run. They are compared with each other before either judges a subject.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.scaled_dot import is_found, scaled_dot_rows
from attnbench.cases.case import Case
from attnbench.checking.profiles import current_profile
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.applicability import adds_keys
from attnbench.invariants.toolkit.comparisons import needs, reject, within
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import FREE_MASKS
from attnbench.oracle.budget import Oracle
from attnbench.specs import KINDS
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_PAIRS = {"quick": 8}
"""About how many pairs of query and key are scored in Python floats, 10 to 100 µs each; else 64."""

_ITEM_PAIRS = {"quick": 64}
"""Pairs of an item above which a mechanism's reference sees a few keys only; else 1024."""

_FEW = 8
"""Most keys that it sees then."""

_ORDER = 2.0**-40
"""What the order of operations may change, relative: the scalar reference has its own.

Terms that cancel in one order, such as those of a large query and a weight, do not in another.
"""

_LATE = 500
"""Number of keys of which a half type cannot represent all positions."""


def judge(oracle: Oracle, got: Tensor) -> None:
    """Raise if an output differs from the float64 run by more than its budget.

    A subject that does not support float64 may give NaN in it; then that run is no reference.
    """
    lost = got.isfinite().cpu() & ~oracle.output.isfinite().cpu()
    if "float64" not in oracle.subject.dtypes and bool(lost.any()):
        reject("float64 is not supported, and a run in it is no reference")
    within(got, oracle.output, allowed_errors(oracle), "output", "the float64 run")


def _units(oracle: Oracle) -> float:
    """Units in the last place that all may move by; the float64 run is rounded as much itself."""
    return 8.0 if oracle.eps == torch.finfo(torch.float64).eps else 4.0


def allowed_errors(oracle: Oracle, **given: Any) -> Iterator[Tensor]:
    """Yield allowed errors of an output, the cheapest and narrowest first."""
    given.setdefault("units", _units(oracle))
    yield oracle.floor(**given).expand(oracle.output.shape)
    yield oracle.budget(**given).expand(oracle.output.shape)
    for bound in oracle.sure_budgets(**given):
        yield bound.expand(oracle.output.shape)


def _in_any_order(oracle: Oracle, units: float, eps: float) -> Iterator[Tensor]:
    """The same for a comparison with the scalar reference."""
    return allowed_errors(oracle, units=units, eps=max(eps, _ORDER / units))


def references_agree(oracle: Oracle, case: Case) -> Tensor:
    """The output with some rows by the scalar reference, once both references agree on them.

    Raises:
        InvariantViolation: they do not; then neither can judge the subject.
    """
    scalar = oracle.with_scalar(oracle.rows(_PAIRS.get(current_profile().name, 64)))
    near = _in_any_order(oracle, 64.0, oracle.subject.eps(torch.float64))
    try:
        within(oracle.output, scalar, near, "output in float64", "the scalar reference")
    except InvariantViolation as violation:
        raise violation.reworded(
            f"{oracle.subject.maker.name} run in float64 is not what its reference= computes in "
            f"Python floats: one of the two, most often the module, does not compute "
            f"{oracle.subject.maker.formula or 'the formula'}.\n"
            f"  {violation}",
        ) from None
    return scalar


def representable(oracle: Oracle, case: Case, *, room: float = 1.0) -> None:
    """Reject a case in which a true score, or a mechanism's true output, is too large for float16.

    The scores of a mechanism without a reference of its own may be ``q·k`` as it is, which has to
    fit too.

    Args:
        oracle, case: the case.
        room: how many times as large intermediate values may be.
    """
    if case.dtype != "float16":
        return
    is_mechanism = oracle.subject.scoring is None
    true = oracle.output if is_mechanism else oracle.scores.masked_fill(~oracle.allowed, 0.0)
    if room * float(true.nan_to_num().abs().max()) > torch.finfo(torch.float16).max:
        what = "output" if is_mechanism else "score"
        reject(f"a true {what} is larger than the dtype's largest number")
    query, key = oracle.inputs.query, oracle.inputs.key
    reference = oracle.subject.maker.reference
    is_declared = reference is not None and not is_found(reference)
    if oracle.subject.kind == "mechanism" and not is_declared:
        longest = (float(t.double().norm(dim=-1).max()) for t in (query, key))
        if room * math.prod(longest) > torch.finfo(torch.float16).max:
            reject("nothing says that its scores are scaled, and q·k is larger than float16 holds")


def _has_reference(subject: Subject) -> str | None:
    if (reason := adds_keys(subject)) and subject.maker.reference is scaled_dot_rows:
        return f"{reason}, and an adapter's reference has none"
    return None if subject.maker.reference else "declares no reference in Python floats"


@invariant(masks=FREE_MASKS, applies=_has_reference)
def agrees_with_scalar_reference(subject: Subject, case: Case) -> None:
    """The output is what the spec's reference computes in Python floats, within 4 times what one
    unit in the last place of inputs and parameters changes.
    """
    if case.is_narrow and is_found(subject.maker.reference):
        reject("its formula was found by trying, and half types are held to float64")
    module, inputs = subject.build(case)
    most = _ITEM_PAIRS.get(current_profile().name, 1024)
    if subject.scoring is None and case.q_len * case.kv_len > most:
        if subject.takes_mask("boolean"):
            inputs = _with_few_keys(inputs, most // case.q_len, case.seed)
        elif case.mask == "none":
            inputs = inputs.replace(query=inputs.query[..., -1:, :])
    oracle = Oracle(subject, module, inputs)
    if not oracle.has_scalar:
        reject("the reference of a mechanism knows no floating masks")
    representable(oracle, case)
    scalar = references_agree(oracle, case)
    got = subject.output(module, inputs)
    near = _in_any_order(oracle, _units(oracle), oracle.eps)
    within(got, scalar, near, "output", "the scalar reference")


def _with_few_keys(inputs: Inputs, count: int, seed: int) -> Inputs:
    """Hide all but a few keys, since a mechanism's reference computes whole items."""
    more = max(0, min(count, _FEW) - 2)
    kv_len = inputs.key.shape[-2]
    order = torch.randperm(kv_len, generator=torch.Generator().manual_seed(seed))
    few = torch.zeros(1, kv_len, dtype=torch.bool)
    few[0, [0, kv_len - 1, *order[:more].tolist()]] = True
    few, mask = few.to(inputs.key.device), inputs.attn_mask
    if mask is None:
        return inputs.replace(attn_mask=few)
    left = mask if mask.dtype == torch.bool else mask > float("-inf")
    few = few | ~(left & few).any(-1, keepdim=True)  # a row of which none is left keeps its own
    if mask.dtype == torch.bool:
        return inputs.replace(attn_mask=mask & few)
    return inputs.replace(attn_mask=mask.masked_fill(~few, float("-inf")))


@invariant(
    kinds=KINDS, masks=FREE_MASKS, beyond=(Case((1,), 2, 2 * _LATE, 16, 16, 64, "bfloat16"),)
)
def agrees_with_float64(subject: Subject, case: Case) -> None:
    """The output is that of a run in float64, within 4 times what one unit in the last place of
    inputs and parameters changes.
    """
    module, inputs = subject.build(case)
    oracle = Oracle(subject, module, inputs)
    representable(oracle, case)
    judge(oracle, subject.output(module, inputs))
    late = case.kv_len >= _LATE and (case.regime, case.mask) == ("normal", "none")
    late = late and "float64" in subject.dtypes
    if late and oracle.eps > _HALF and (subject.kind == "scoring" or subject.gives_weights):
        _judge_scores(oracle, _scores(subject, module, inputs))


def _judge_scores(oracle: Oracle, scores: Tensor) -> None:
    """Raise if scores are off by more than 4 units of inputs move them, as root mean squares.

    An output hides what is wrong with the scores of many keys, such as angles of late positions
    that were computed in a half type: it is a mean over the keys.
    """
    right = _scores(oracle.subject, oracle.module, oracle.inputs)
    seen = right > right.amax(-1, keepdim=True) - _SPREAD

    def off(other: Tensor) -> Tensor:
        """By how much they are off, less what all keys of a row share, which softmax removes."""
        change = (other - right).masked_fill(~seen, 0.0)
        return (change - change.sum(-1, keepdim=True) / seen.sum(-1, keepdim=True))[seen]

    error = off(scores)
    moved = [off(_scores(oracle.subject, *pair)) for pair in oracle.moved(oracle.eps, 4)]
    got, move = (float(t.square().mean().sqrt()) for t in (error, torch.cat(moved)))
    allowed = 4 * max(move, oracle.eps)
    if got > allowed:
        raise InvariantViolation(
            quantity=f"root mean square of the errors of {len(error)} scores",
            got=got,
            expected=0.0,
            other="the float64 run",
            allowed=allowed,
            error=got / allowed,
        )


def _scores(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """Scores in float64; those of a mechanism are the logarithms of its weights."""
    with torch.no_grad():
        if subject.kind == "scoring":
            return needs(subject.scores(module, inputs)).cpu().double()
        return needs(subject.weights(module, inputs)).cpu().double().log()


_SPREAD = 6.0
"""How far scores may lie below a row's largest: the weights of others are rounded to 0."""

_HALF = 1e-4
"""The unit in the last place of float16 is larger, and that of float32 smaller."""
