"""The invariant on calls under autocast."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.checking.reproduction.untaped import sourced, transformed
from attnbench.errors import InvariantViolation
from attnbench.invariants.calls.compiling import in_one_sentence
from attnbench.invariants.numerics import bounds
from attnbench.invariants.toolkit.applicability import supports
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, reject, within
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import benign
from attnbench.invariants.toolkit.layer_rounding import rounding_of
from attnbench.invariants.toolkit.origins import Correction, Number
from attnbench.invariants.toolkit.other_operations import Replaced, given
from attnbench.oracle.budget import Oracle
from attnbench.specs import KINDS
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject


def under_autocast(call: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
    """The output under autocast to bfloat16."""
    # without a graph, as the references copy the module: torch copies none that keeps a graph
    with torch.no_grad(), torch.autocast(tensors[0].device.type, torch.bfloat16):
        return call(*tensors)


@invariant(
    kinds=KINDS,
    cases=benign,
    masks=("none", "boolean", "floating", "padding"),
    regimes=("normal",),
    dtypes=("float32",),
    applies=supports("float32"),
)
@transformed("autocast", lambda: sourced(under_autocast))
def autocast_agrees(subject: Subject, case: Case) -> None:
    """Under autocast the output is right within the narrower dtype's rounding; it may raise."""
    base = Baseline(subject, case)
    narrow = torch.bfloat16
    with in_one_sentence("a call under autocast", may_raise=True):
        got = under_autocast(lambda *_: base.run(base.inputs), base.inputs.query)
    if got.dtype not in (narrow, base.inputs.query.dtype):
        raise InvariantViolation(
            f"under autocast to {narrow}, output.dtype = {got.dtype}, but should be "
            f"{base.inputs.query.dtype} or {narrow}"
        )
    with torch.no_grad():
        _ = base.output  # computed here, or the module that the oracle copies might keep a graph
    oracle = Oracle(subject, base.module, base.inputs)
    if "float64" not in subject.dtypes and not torch.equal(
        oracle.output.isfinite(), base.output.cpu().isfinite()
    ):
        reject("float64 is not supported, and a run in it is no reference")
    eps = torch.finfo(narrow).eps
    what, other = "under autocast to bfloat16, output", "the float64 run"
    within(got, oracle.output, bounds(oracle, eps=eps), what, other)
    if isinstance(subject, LayerSubject):  # what is rounded within a submodule is no excuse
        inputs = (base.inputs.query, getattr(base.inputs, "padding_mask", None))
        allowed = rounding_of(subject, base.module, *inputs, eps=eps)
        try:
            agree_within(got, base.output, allowed, what, "the call without it")
        except InvariantViolation as violation:
            raise violation.explained(partial(_rounded_line, base, allowed)) from None


def _rounded_line(base: Baseline, allowed: Tensor) -> str:
    """A sentence on the first line without whose rounding the output is right."""

    def run() -> Tensor:
        return under_autocast(lambda *_: base.run(base.inputs), base.inputs.query)

    with torch.no_grad(), Correction() as wide:
        base.run(base.inputs)
    with Correction() as narrow:
        run()
    lines: dict[str, dict[Number, tuple[Tensor, ...]]] = {}
    for key, result in narrow.results.items():
        value = wide.results.get(key)
        if value is not None and value.shape == result.shape and value.dtype != result.dtype:
            rounded = value.to(result.dtype)
            again = rounded.to(value.dtype)  # for this, what follows computes in no other dtype
            lines.setdefault(key.line, {})[narrow.numbers[key]] = value, rounded, again
    for line, results in lines.items():
        is_right = []
        for part in range(3):
            others = {number: given(tries[part]) for number, tries in results.items()}
            with contextlib.suppress(Exception), Replaced(others):  # another dtype may not do
                gap = (run().to(base.output) - base.output).abs()
                is_right.append(bool((gap <= allowed).all()))
        if is_right == [True, False, False]:
            tries = next(iter(results.values()))
            one, two = (str(each.dtype).removeprefix("torch.") for each in tries[:2])
            return f"\n  it is right with {one} as the result of {line}, not with {two}"
    return ""
