"""The invariant on calls under autocast."""

from __future__ import annotations

import torch

from attnbench import Case, InvariantViolation, Subject
from attnbench.testing import (
    KINDS,
    Baseline,
    LayerSubject,
    Oracle,
    agree_within,
    allowed_errors,
    benign,
    reject,
    rounding_of,
    supports,
    within,
)
from attnbench_plugins.properties import invariant
from attnbench_plugins.properties.calls.compiling import in_one_sentence


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
    device = base.inputs.query.device.type
    told = in_one_sentence("a call under autocast", may_raise=True)
    # without a graph, as the references copy the module: torch copies none that keeps a graph
    with torch.no_grad(), told, torch.autocast(device, narrow):
        got = base.run(base.inputs)
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
    within(got, oracle.output, allowed_errors(oracle, eps=eps), what, other)
    if isinstance(subject, LayerSubject):  # what is rounded within a submodule is no excuse
        inputs = (base.inputs.query, getattr(base.inputs, "padding_mask", None))
        allowed = rounding_of(subject, base.module, *inputs, eps=eps)
        agree_within(got, base.output, allowed, what, "the call without it")
