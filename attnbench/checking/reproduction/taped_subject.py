"""A subject that records its modules, inputs and calls on a tape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

import torch
from torch import nn

from attnbench.cases.case import Case
from attnbench.checking.reproduction.subject_source import Named, named_attend, named_make
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
        self.tape.made_module(module, text, seed)
        return module

    def unsettle(self, module: nn.Module) -> None:
        """Change the parameters, and write the line for it."""
        self.tape.paused = True
        try:
            super().unsettle(module)
        finally:
            self.tape.paused = False
        self.tape.changed_module(module, unsettling(self.constant_parameters, "@"))

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
    fresh = torch.Generator().manual_seed(seed).get_state()
    return seed if torch.equal(torch.default_generator.get_state(), fresh) else None


def taped(subject: Subject, tape: Tape) -> tuple[Subject, list[Named]]:
    """The same subject recorded on a tape, and the source text of its parts."""
    named = [named_make(subject.maker)]
    spec = subject.spec
    if isinstance(spec, KernelSpec):
        named.append(named_attend(spec))
        attend, text = spec.attend, named[-1].text

        def recorded(*args: Any, **kwargs: Any) -> Any:
            return tape.called(attend, text, args, kwargs)

        spec = replace(spec, attend=recorded)
    kind = type(f"Taped{type(subject).__name__}", (_Taping, type(subject)), {})
    taped: Subject = object.__new__(kind)
    given = {field.name: getattr(subject, field.name) for field in fields(subject)}
    vars(taped).update(given, spec=spec, tape=tape, make_text=named[0].text)
    vars(taped)["constant_parameters"] = subject.constant_parameters  # found without the tape
    return taped, named


@contextmanager
def calls_taped(tape: Tape) -> Iterator[None]:
    """Record each call of a module that was made on the tape as one line."""
    plain: Callable[..., Any] = nn.Module.__call__

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if tape.paused or not tape.owns(module):
            return plain(module, *args, **kwargs)
        return tape.called(plain, "", (module, *args), kwargs)

    nn.Module.__call__ = called  # type: ignore[method-assign]  # put back below
    try:
        yield
    finally:
        nn.Module.__call__ = plain  # type: ignore[method-assign]  # as it was
