"""Invariants on how a subject is run: what it is called with stays as it was."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from attnbench.cases import Case
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.specs import Invariant
from attnbench.subject import Subject

__all__: list[str] = []


def _memory(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _inputs_are_unchanged(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    before = {name: (tensor.clone(), _memory(tensor).clone()) for name, tensor in inputs.tensors()}
    for mode in ("eval", "training"):
        subject.output(module.train(mode == "training"), inputs)
        for name, tensor in inputs.tensors():
            values, memory = before[name]
            changed = (tensor != values) & ~(tensor.isnan() & values.isnan())
            if bool(changed.any()):
                place = changed.nonzero()[0].tolist()
                now, then = tensor[tuple(place)].item(), values[tuple(place)].item()
                raise InvariantViolation(
                    f"{name}{place} = {now:.6g} after the call in {mode} mode, but should be "
                    f"{then:.6g} as before it: the caller's tensor was changed in place"
                )
            if not torch.equal(_memory(tensor), memory):
                raise InvariantViolation(
                    f"the call in {mode} mode wrote to memory beside {name}, which is a view "
                    f"({case.layout}) of a larger tensor of the caller's, but should change none "
                    "of it"
                )


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on how a subject is run."""
    yield Invariant(
        name="inputs_are_unchanged",
        statement="A call changes neither its inputs nor the memory that they are views of.",
        check=_inputs_are_unchanged,
    )
