"""The process of one side: ``python -m attnbench_plugins.comparing.server PIPE THREADS CORE``.

It runs in the environment of its side, with the attnbench that is installed there; sides whose
contracts have other versions are not compared. It imports torch and the side's plugins, and then
does what it is asked: a request is the name of a method of :class:`Served` with arguments, and an
answer is a fault, empty if there is none, and the result.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import os
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from attnbench import KernelSpec, SpecError, subjects
from attnbench.errors import headline
from attnbench.testing import resolve
from attnbench.timing import VERSION, BenchCase, Contract, Timer, measured_call, settled


class Served:
    """What the process does when it is asked; it holds one subject at one case at a time."""

    def start(self, core: str) -> int:
        """Import the plugins; returns the version of the contracts."""
        subjects()
        gc.freeze()
        if core != "None":
            with contextlib.suppress(OSError):
                os.sched_setaffinity(0, {int(core)})
        return VERSION

    def addresses(self, address: str | None, root: str) -> list[str]:
        """The addresses of the subjects of one, or of all whose code is in a folder.

        Layers are not compared.
        """
        if address is not None:
            return [str(subject.address) for subject in resolve(address)]
        names = []
        for name in subjects():
            with contextlib.suppress(Exception):  # a subject that cannot be looked up
                (subject,) = resolve(name)
                code = Path(_origin_of(subject.spec))
                if not subject.options and subject.kind != "layer" and code.is_relative_to(root):
                    names.append(name)
        return names

    def prepare(self, address: str, case: BenchCase, contract: Contract) -> tuple[float, str, str]:
        """Put a subject in the place of the previous one, and call it until it is warm.

        Returns:
            The seconds and the clock of a call, and the file of the subject's code.
        """
        vars(self).clear()
        gc.collect()
        (self.subject,) = resolve(address)
        self.case = case
        if reason := case.reason_against(self.subject):
            raise SpecError(reason)
        self.module, self.inputs = case.build(self.subject)
        call = measured_call(self.subject, self.module, self.inputs, case.direction)
        call()
        self.timer = Timer(call, torch.device(case.case.device), contract)
        return self.timer.seconds, self.timer.clock, _origin_of(self.subject.spec)

    def use_clock(self, clock: str) -> None:
        """Time the next slots by this clock."""
        self.timer.clock = clock

    def slot(self) -> tuple[float, bool]:
        """Take one slot."""
        slot = self.timer.slot()
        return slot.seconds, slot.disturbed

    def shake(self, seed: int) -> None:
        """Move the tensors that the call reads and writes to other places, and call it once."""
        self.timer.shake(seed)

    def answer(self) -> tuple[str, bytes]:
        """What is wrong with the form of timed outputs, and one of them for the other side."""
        samples = self.timer.samples
        if fault := samples.form_fault():
            return fault, b""
        sample, buffer = samples.items[0], io.BytesIO()
        content = {
            "state": self.module.state_dict(),
            "inputs": {name: tensor.detach().cpu() for name, tensor in sample.inputs.tensors()},
            "results": list(sample.copies),
        }
        torch.save(content, buffer)
        return "", buffer.getvalue()

    def difference(self, answer: bytes) -> str:
        """How the other side's answer differs from that here, in words; empty if it does not."""
        other = torch.load(io.BytesIO(answer), weights_only=True)
        try:
            self.module.load_state_dict(other["state"])
        except RuntimeError as error:
            return f"its parameters differ ({headline(error)})"
        inputs = self.inputs.replace(
            **{name: tensor.to(self.case.case.device) for name, tensor in other["inputs"].items()}
        )
        if self.case.direction != "forward":
            inputs = inputs.map(lambda tensor: tensor.detach().requires_grad_())
        found = self.timer.difference(inputs, other["results"])
        return f"its output {found}" if found else ""


def _origin_of(spec: Any) -> str:
    """The file that contains a spec's code."""
    code = spec.attend if isinstance(spec, KernelSpec) else spec.make
    for holder in (code, spec):  # an adapter's spec is made of what it calls
        code = getattr(holder, "callee", code)
    code = getattr(code, "func", code)  # of a partial
    code = type(code) if isinstance(code, torch.nn.Module) else code
    with contextlib.suppress(TypeError):
        return str(Path(inspect.getfile(inspect.unwrap(code))).resolve())
    module = sys.modules.get(getattr(code, "__module__", ""), None)
    return str(Path(getattr(module, "__file__", "") or "").resolve())


def main() -> None:
    """Do what is asked until the other end of the pipe is closed."""
    pipe, threads, core = Connection(int(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(threads)
    served = Served()
    action, arguments = "start", (core,)
    with contextlib.suppress(EOFError, BrokenPipeError), settled(torch.device("cpu")):
        while True:
            answer: tuple[str, Any]
            try:
                answer = "", getattr(served, action)(*arguments)
            except BaseException as error:  # whatever a subject raises
                answer = headline(error), None
            pipe.send(answer)
            action, arguments = pipe.recv()


if __name__ == "__main__":
    main()
