"""A subject that records its modules, inputs and calls on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from attnbench.cases.case import Case
from attnbench.checking.reproduction.subject_source import Source, source_of
from attnbench.checking.reproduction.tape import Tape
from attnbench.checking.reproduction.untaped import unsettling
from attnbench.specs import KernelSpec
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


class _Taping(Subject):
    """The parts of a subject that record modules and calls on a tape."""

    tape: Tape
    make_text: str

    def make(self, *sizes: int) -> nn.Module:
        """Make a module, and write the line for it."""
        seed, self.tape.paused = _fresh_seed(), True
        try:
            module = super().make(*sizes)
        finally:
            self.tape.paused = False
        sizes = sizes[: self.size_count]
        options = [f"{name}={value!r}" for name, value in self.options.items()]
        text = f"{self.make_text}({', '.join([*map(str, sizes), *options])})"
        self.tape.record_module(module, text, seed)
        return module

    def unsettle(self, module: nn.Module) -> None:
        """Change the parameters, and write the line for it."""
        self.tape.paused = True
        try:
            super().unsettle(module)
        finally:
            self.tape.paused = False
        self.tape.record_change(module, unsettling(self.constant_parameters, "@"))

    def build(self, case: Case) -> tuple[nn.Module, Inputs]:
        """Build module and inputs, and name the inputs."""
        module, inputs = super().build(case)
        self.tape.name(module, "module")
        for name, tensor in inputs.tensors():
            self.tape.name(tensor, name)
        return module, inputs


def _fresh_seed() -> int | None:
    """The seed of torch's global generator; ``None`` if it has been used since."""
    seed = torch.default_generator.initial_seed()
    state = torch.Generator().manual_seed(seed).get_state()
    return seed if torch.equal(torch.default_generator.get_state(), state) else None


def tape_subject(subject: Subject, tape: Tape) -> tuple[Subject, list[Source]]:
    """The same subject recorded on a tape, and the source text of its parts."""
    parts = [source_of(subject.maker, "make")]
    spec = subject.spec
    if isinstance(spec, KernelSpec):
        parts.append(source_of(spec, "attend"))
        attend, text = spec.attend, parts[-1].text

        def record(*args: Any, **kwargs: Any) -> Any:
            return tape.record_call(attend, text, args, kwargs)

        spec = replace(spec, attend=record)
    kind = type(f"Taped{type(subject).__name__}", (_Taping, type(subject)), {})
    copy: Subject = object.__new__(kind)
    values = {field.name: getattr(subject, field.name) for field in fields(subject)}
    vars(copy).update(values, spec=spec, tape=tape, make_text=parts[0].text)
    vars(copy)["constant_parameters"] = subject.constant_parameters  # found without the tape
    return copy, parts


@contextmanager
def record_calls(tape: Tape) -> Iterator[None]:
    """Record each call of a module that was made on the tape as one line."""
    original: Callable[..., Any] = nn.Module.__call__

    def record(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if tape.paused or not tape.owns(module):
            return original(module, *args, **kwargs)
        return tape.record_call(original, "", (module, *args), kwargs)

    nn.Module.__call__ = record  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        nn.Module.__call__ = original  # type: ignore[method-assign]  # as it was
