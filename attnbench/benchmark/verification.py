"""Whether a timed subject is right: before, while and after it is timed."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import nn

from attnbench.benchmark.agreement import Agreement, agreement, ratio_of_errors
from attnbench.benchmark.gradient_agreement import gradient_ratio
from attnbench.benchmark.timed_calls import Step, StepInputs
from attnbench.benchmark.timing.samples import Samples
from attnbench.errors import headline
from attnbench.subject.layer import LayerSubject
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_TIMED_ROWS = 8
"""Number of query rows of a timed output that are compared."""


class Unverified(Exception):  # noqa: N818 -- a result for a row, not an error of attnbench
    """A timed subject must not be ranked; the message says why."""


def rating(subject: Subject, module: nn.Module, inputs: Inputs, direction: str) -> dict[str, Any]:
    """The status and errors of a subject; a wrong one is still measured, but never ranked."""
    try:
        with torch.no_grad():
            if isinstance(subject, LayerSubject) and isinstance(inputs, StepInputs):
                output = Step(subject, module, inputs).alone()[0]
            else:
                output = subject.output(module, inputs)
        result = agreement(subject, module, inputs, output)
        slope_ratio = 0.0
        if direction == "forward_backward" and result.agrees:
            slope_ratio = gradient_ratio(subject, module, inputs)
    except Exception as error:
        reason = f"the reference could not be computed: {headline(error)}"
        return {"status": "unverified", "reason": reason}
    values = {
        "error_abs": result.error_abs,
        "error_ratio": max(result.ratio, slope_ratio),
        "error_rows": result.rows,
    }
    if result.agrees and slope_ratio <= 1.0:
        return {"status": "ok", "reason": "", **values}
    finding = (
        f"gradients differ from those of float64 by up to {slope_ratio:.3g} times"
        if result.agrees
        else f"off the float64 reference by up to {result.error_abs:.3g}, {result.ratio:.3g} times"
    )
    reason = f"{finding} the allowed error; see: {subject.check_command}"
    return {"status": "unverified", "reason": reason, **values}


def verify(
    subject: Subject, module: nn.Module, inputs: Inputs, direction: str, samples: Samples
) -> None:
    """Compare what was timed with the reference, after the clock has stopped.

    Raises:
        Unverified: the output of a timed call is wrong, is not a plain tensor of its own, or
            changed after the call had returned.
    """
    if fault := samples.form_fault():
        raise Unverified(fault)
    if not samples.items:
        raise Unverified("no output of a timed call was kept, so that none could be compared")
    chance = random.SystemRandom()  # a subject that knew the rows could compute only those
    if direction != "forward_backward":
        # all are held to one module in float64, and that by one of them to the other reference
        held = chance.choice(samples.items)
        rows: dict[str, Any] = {"max_rows": _TIMED_ROWS, "chance": chance, "with_floor": True}
        for sample in samples.items:
            (output,) = sample.copies
            how = {**rows, "with_scalar": sample is held}
            result = agreement(subject, module, sample.inputs, output, **how)
            if not result.agrees:
                raise Unverified(
                    f"the output of a timed call is off by up to {result.error_abs:.3g}, "
                    f"{result.ratio:.3g} times the allowed error, though an untimed one was right: "
                    "it depends on earlier calls or on being timed"
                )
        return
    if not gradient_ratio(subject, module, inputs) <= 1.0:
        raise Unverified("its gradients are wrong after it was timed, and were right before")
    sample = chance.choice(samples.items)
    shapes = [tensor.shape for tensor in (inputs.query, inputs.key, inputs.value)]
    if [tensor.shape for tensor in sample.copies[:3]] != shapes:
        return  # one is missing, such as that of an unused query
    ratio = gradient_ratio(subject, module, sample.inputs, sample.copies, chance)
    if not ratio <= 1.0:
        raise Unverified(
            f"a gradient of a timed call is off by {ratio:.3g} times the allowed error, though "
            "those of untimed calls were right: it depends on the upstream gradient or on being "
            "timed"
        )


def is_blind() -> bool:
    """Whether a wrong output passes as right, because code replaced the comparison."""
    errors = (torch.zeros(3, device="cpu") - 1.0).abs()
    return Agreement(1.0, ratio_of_errors(errors, 0.5), 3).agrees
