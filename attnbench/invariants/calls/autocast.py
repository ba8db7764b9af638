"""The invariant on calls under autocast."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.calls.compiling import in_one_sentence
from attnbench.invariants.numerics import bounds
from attnbench.invariants.toolkit.applicability import supports
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, reject, within
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import benign
from attnbench.invariants.toolkit.layer_rounding import rounding_of
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
        agree_within(got, base.output, allowed, what, "the call without it")
