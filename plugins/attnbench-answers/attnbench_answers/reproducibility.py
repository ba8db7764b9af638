"""Does the batch change it? Grades how far the arrangement of a call shows in its output.

For each law of :mod:`attnbench_plugins.properties.bitwise`, a subject is called at growing lengths
in each dtype. Its grade is *bitwise* where no bit differs, *rounding* where all differences are
within the error budget of the case, and *neither* otherwise: then something else differs.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import Case, Inputs, RefusalError, Subject
from attnbench.commands import Address
from attnbench.testing import ARRANGEMENTS, Oracle, resolve
from attnbench_answers.calls import own_inputs

_LENGTHS = (1, 2, 3, 8, 17, 33, 65, 129, 257, 513, 1025)
_MOST_QUERIES = 33
_DTYPES = ("float32", "bfloat16")
_FAR = 64.0
"""Times the budget of a few directions that no number of them explains; many take seconds."""
_FLOAT32_STEPS = 16 * torch.finfo(torch.float32).eps
"""Relative difference of float64 runs that a sum in float32 within them explains."""
_BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def drift(
    target: str | Address,
    *,
    dtypes: Sequence[str] = _DTYPES,
    device: str = "cpu",
    inputs: str | None = None,
) -> list[dict[str, Any]]:
    """Grade the subjects of a target; called by the command in a child process.

    Args:
        target: address of one or several subjects.
        dtypes: names of dtypes; those that a subject does not support are left out.
        device: name of a torch device.
        inputs: a safetensors file with query, key and value to use instead of drawn ones.

    Returns:
        A row for each subject, law and dtype: ``grade``, whether the law is ``declared``, the
        case at which it begins, the first element that differs, the largest difference in units in
        the last place, and why a law was not tried.
    """
    return [
        row
        for subject in resolve(target)
        for dtype in dtypes
        if dtype in subject.dtypes
        for row in _graded(subject, dtype, device, inputs)
    ]


def _graded(
    subject: Subject, dtype: str, device: str, file: str | None
) -> Iterator[dict[str, Any]]:
    for arrangement in ARRANGEMENTS:
        row: dict[str, Any] = {
            "subject": subject.name,
            "law": arrangement.law,
            "dtype": dtype,
            "declared": arrangement.law in subject.laws,
            "grade": "not tried",
            "begins": None,
            "place": None,
            "units": None,
            "reason": arrangement.applies(subject),
        }
        if row["reason"] is None:
            row |= _grade(subject, arrangement, _given(subject, dtype, device, file))
        yield row


def _given(
    subject: Subject, dtype: str, device: str, file: str | None
) -> Iterator[tuple[str, nn.Module, Inputs]]:
    """Yield growing calls: what each is called, a module, and inputs."""
    if file is not None:
        words, own = own_inputs(file, getattr(torch, dtype))
        own = own.map(lambda t: t.to(device))
        sizes = (own.query.shape[-1], own.key.shape[-1], own.value.shape[-1])
        torch.default_generator.manual_seed(0)
        module = subject.make(*sizes).to(dtype=getattr(torch, dtype), device=device).eval()
        yield words, module, own
        return
    seen = set()
    for length in _LENGTHS:
        queries = min(length, _MOST_QUERIES)
        case = Case((3, 2), queries, length, 64, 64, 64, dtype, device, seed=length)
        case = subject.legal(case)
        if case.kv_len not in seen:
            seen.add(case.kv_len)
            module, inputs = subject.build(case)
            keys = "" if subject.kind == "layer" else f", S={case.kv_len}"
            yield f"L={case.q_len}{keys}", module, inputs


def _grade(
    subject: Subject,
    arrangement: Any,
    calls: Iterator[tuple[str, nn.Module, Inputs]],
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    tried = False
    for words, module, inputs in calls:
        try:
            with torch.no_grad():
                reruns = list(arrangement.reruns(subject, module, inputs))
        except RefusalError as refusal:
            found["reason"] = str(refusal)
            continue
        tried = tried or bool(reruns)
        unlike = [rerun for rerun in reruns if not _same_bits(rerun.got, rerun.expected)]
        if not unlike:
            continue
        if "begins" not in found:
            place = _first_difference(unlike[0])
            found |= {"grade": "rounding", "begins": words, "place": place, "units": 0.0}
        found["units"] = max(found["units"], *map(_units, unlike))
        if found["grade"] != "rounding":
            continue
        try:
            if _differs_in_float64(subject, arrangement, module, inputs) or not _is_rounding(
                subject, module, inputs, unlike
            ):
                found["grade"] = "neither"
        except Exception as error:  # without float64, it may have no reference
            if "float64" in subject.dtypes:
                raise
            return found | {"grade": "not tried", "reason": f"bits differ, but {error}"}
    if tried and "begins" not in found:
        found = {"grade": "bitwise", "reason": None}
    return found


def _same_bits(one: Tensor, other: Tensor) -> bool:
    kind = _BITS[one.element_size()]
    return torch.equal(one.contiguous().view(kind), other.contiguous().view(kind))


def _first_difference(rerun: Any) -> str:
    """The first element in which two outputs part."""
    one, other = (t.contiguous().cpu() for t in (rerun.got, rerun.expected))
    kind = _BITS[one.element_size()]
    place = (one.view(kind) != other.view(kind)).nonzero()[0].tolist()
    values = float(one[tuple(place)]), float(other[tuple(place)])
    return f"{rerun.prefix}output{place} = {values[0]:.9g}, not {values[1]:.9g}"


def _units(rerun: Any) -> float:
    """The largest difference in units in the last place of its row's largest value."""
    one, other = (t.detach().cpu().double() for t in (rerun.got, rerun.expected))
    unit = torch.finfo(rerun.expected.dtype).eps * other.abs().amax(-1, keepdim=True)
    off = ((one - other).abs() / unit.clamp_min(1e-300)).nan_to_num(nan=math.inf)
    return float(off.max()) if off.numel() else 0.0


def _differs_in_float64(
    subject: Subject, arrangement: Any, module: nn.Module, inputs: Inputs
) -> bool:
    """Whether arrangements of a run in float64 part by more than a step in float32 would explain.

    The budget of what is random, or narrows on its own, covers that as well.
    """
    if "float64" not in subject.dtypes:
        return False
    with torch.no_grad():
        wide, given = copy.deepcopy(module).double(), inputs.map(torch.Tensor.double)
        for rerun in arrangement.reruns(subject, wide, given):
            size = float(rerun.expected.abs().max())
            if not float((rerun.got - rerun.expected).abs().max()) <= _FLOAT32_STEPS * size:
                return True
    return False


def _is_rounding(
    subject: Subject, module: nn.Module, inputs: Inputs, unlike: Sequence[Any]
) -> bool:
    """Whether outputs may be off by what parts them: each of two by the budget of the case."""
    most = 0.0
    for rerun in unlike:
        off = (rerun.got.detach().cpu().double() - rerun.expected.detach().cpu().double()).abs()
        most = max(most, float(off.nan_to_num(nan=math.inf).max()))
    oracle = Oracle(subject, module, inputs)
    few = 2 * float(oracle.budget().amax())
    if most <= few or most > _FAR * few:
        return most <= few
    return most <= 2 * float(oracle.budget(sure=True).amax())
