"""The invariant that is checked first: a subject answers, as the contract says."""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.checking.answer_faults import fault_at
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.kept_values import explained
from attnbench.specs import KINDS
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

# where even a subject that is exempt from much has to answer
_MASKS = ("none", "boolean", "floating", "causal")
_REGIMES = ("normal", "tiny", "equal_keys", "zero_keys")


@invariant(kinds=KINDS, masks=_MASKS, regimes=_REGIMES)
def keeps_the_contract(subject: Subject, case: Case) -> None:
    """Every legal call gives an output (..., L, Ev) in the query's dtype and on its device, without
    NaN, the same each time, and changes no input.
    """
    fault = fault_at(subject, case)
    if fault is None:
        return
    if fault.kind == "nan" and case.layout != "contiguous":
        module, inputs = subject.build(case)
        plain = subject.output(module, inputs.map(Tensor.contiguous))
        if not bool(plain.isnan().any()):
            raise InvariantViolation(f"{fault.text}, and not for contiguous ones", cause="layout")
    got = math.nan if fault.kind == "nan" else None
    violation = InvariantViolation(fault.text, cause=fault.kind, got=got)
    if fault.kind == "random" and "in which it" not in fault.text:  # nothing was drawn
        violation = _with_what_is_kept(violation, subject, case)
    raise violation from fault.error


def _with_what_is_kept(
    violation: InvariantViolation, subject: Subject, case: Case
) -> InvariantViolation:
    """A violation that names the attribute which makes the second of two equal calls another."""

    @functools.cache
    def called() -> tuple[nn.Module, Inputs, Tensor]:
        module, inputs = subject.build(case)
        with torch.no_grad():
            return module, inputs, subject.output(module, inputs)

    def output(module: nn.Module) -> Tensor:
        return subject.output(module, called()[1])

    def modules() -> tuple[nn.Module, nn.Module]:
        return called()[0], subject.build(case)[0]

    def is_right(module: nn.Module) -> bool:
        return torch.equal(output(module), called()[2])

    return explained(violation, modules, is_right, output)
