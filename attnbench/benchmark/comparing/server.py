"""The server of one side: ``python -m attnbench.benchmark.comparing.server THREADS``.

It runs in the environment of its side, with the attnbench that is installed there; sides whose
contracts have other versions are not compared. It imports torch and the side's plugins once. For
each pair it forks a child, which takes slots on request. Orders and answers are lines of JSON on
standard input and output.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from attnbench.benchmark.contract import VERSION, Contract
from attnbench.benchmark.timed_calls import measured_call
from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.benchmark.timing.samples import difference, tensors_of
from attnbench.benchmark.timing.slots import Timer, settled
from attnbench.errors import headline
from attnbench.specs import KernelSpec
from attnbench.subject.input_files import load_inputs
from attnbench.subject.lookup import resolve, subjects


class Prepared:
    """One side's subject at one case."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.direction = row["direction"]
        (self.subject,) = resolve(row["address"])
        self.device = torch.device(row["device"])
        self.inputs = self._on_device(load_inputs(Path(row["inputs"])))
        torch.manual_seed(row["seed"])
        query, key, value = self.inputs.query, self.inputs.key, self.inputs.value
        module = self.subject.make(query.shape[-1], key.shape[-1], value.shape[-1])
        self.module = module.to(self.device, query.dtype).eval()
        call = measured_call(self.subject, self.module, self.inputs, self.direction)
        assert isinstance(call, FreshCall)
        self.call = call
        self.timer: Any = None

    def _on_device(self, inputs: Any, **tensors: torch.Tensor) -> Any:
        """Inputs on the device, with some tensors replaced."""
        tensors = {**dict(inputs.tensors()), **tensors}
        return inputs.replace(**{name: t.detach().to(self.device) for name, t in tensors.items()})

    def _results(self, inputs: Any) -> list[torch.Tensor]:
        if self.direction != "forward":
            inputs = inputs.map(lambda tensor: tensor.detach().requires_grad_())
        return tensors_of(self.call.repeat(inputs))

    def warm_up(self, slot_s: float, cap_s: float) -> dict[str, Any]:
        """Call the subject until it is warm; returns the seconds of a call and its clock."""
        contract = Contract(threads=torch.get_num_threads(), slot_s=slot_s, cap_s=cap_s)
        self.call()
        self.timer = Timer(self.call, self.device, contract.pace(self.device.type))
        return {"each_s": self.timer.seconds, "clock": self.timer.clock}

    def answer(self, path: str, *, timed: bool) -> dict[str, Any]:
        """Save parameters, inputs and results of the case or of a timed call for the other side."""
        samples = self.timer.samples
        if timed and samples.form_fault():
            return {"fault": samples.form_fault()}
        inputs, results = self.inputs, self._results(self.inputs)
        if timed:
            inputs, results = samples.items[0].inputs, list(samples.items[0].copies)
        content = {
            "state": self.module.state_dict(),
            "inputs": {name: tensor.detach() for name, tensor in inputs.tensors()},
            "results": results,
        }
        torch.save(content, path)
        return {"fault": ""}

    def same(self, path: str) -> dict[str, Any]:
        """Why the results differ from the other side's; an empty reason if they do not."""
        other = torch.load(path, weights_only=True)
        try:
            self.module.load_state_dict(other["state"])
        except RuntimeError as error:
            return {"reason": f"its parameters differ ({headline(error)})"}
        results = self._results(self._on_device(self.inputs, **other["inputs"]))
        found = difference(results, other["results"])
        return {"reason": f"its output {found}" if found else ""}


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


def _fault_of(error: BaseException) -> dict[str, str]:
    """The answer to an order that raised."""
    return {"error": f"{type(error).__name__}: {headline(error)}"}


def _names_inside(root: str) -> dict[str, Any]:
    """The subjects whose code is in a folder, except layers, which are not compared."""
    names = []
    for name in subjects():
        with contextlib.suppress(Exception):  # a subject that cannot be looked up is not compared
            (subject,) = resolve(name)
            code = Path(_origin_of(subject.spec))
            if not subject.options and subject.kind != "layer" and code.is_relative_to(root):
                names.append(name)
    return {"names": names}


def _addresses(address: str) -> dict[str, Any]:
    """The addresses of the subjects of an address, or the error that looking them up raised."""
    try:
        return {"names": [str(subject.address) for subject in resolve(address)]}
    except (Exception, SystemExit) as error:
        return _fault_of(error)


class _Child:
    """The child of one pair: it holds one subject at a time."""

    def __init__(self) -> None:
        self.prepared: Prepared | None = None
        self.settled = contextlib.ExitStack()

    def prepare(self, order: dict[str, Any]) -> dict[str, Any]:
        """Take the place of the previous subject."""
        self.prepared = None
        self.settled.close()
        gc.collect()
        os.chdir(order["row"]["folder"])
        self.prepared = Prepared(order["row"])
        self.settled.enter_context(settled(self.prepared.device))
        report = self.prepared.warm_up(order["slot_s"], order["cap_s"])
        return {**report, "origin": _origin_of(self.prepared.subject.spec)}

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order, and return the answer."""
        action = order["do"]
        if action == "prepare":
            return self.prepare(order)
        assert self.prepared is not None
        timer = self.prepared.timer
        if action == "slot":
            slot = timer.slot()
            return {"s": slot.seconds, "d": slot.disturbed}
        if action == "answer":
            return self.prepared.answer(order["path"], timed=order["timed"])
        if action == "same":
            return self.prepared.same(order["path"])
        if action == "clock":
            timer.clock = order["clock"]
        elif action == "shake":
            timer.shake(order["seed"])
        return {}


class _Lines:
    """Orders and answers as lines of JSON; what a subject prints goes to standard error."""

    def __init__(self) -> None:
        self._out = os.dup(1)
        os.dup2(2, 1)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while line := sys.stdin.buffer.readline():
            yield json.loads(line)

    def send(self, answer: dict[str, Any]) -> None:
        os.write(self._out, json.dumps(answer).encode() + b"\n")


def _serve_pair(lines: _Lines, core: int | None) -> None:
    """Carry out orders in a child until the order to end arrives."""
    if core is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})
    child = _Child()
    for order in lines:
        if order["do"] == "end":
            break
        try:
            lines.send(child.do(order))
        except BaseException as error:  # whatever a subject raises
            if isinstance(error, KeyboardInterrupt):
                raise
            lines.send(_fault_of(error))


def main() -> None:
    """Serve one side until its input ends."""
    lines = _Lines()
    torch.set_num_threads(int(sys.argv[1]))
    try:
        subjects()  # imports the plugins, once for all children
    except Exception as error:
        lines.send(_fault_of(error))
        return
    lines.send({"contract": VERSION})
    gc.freeze()
    for order in lines:
        if order["do"] == "names":
            lines.send(_names_inside(order["root"]))
        elif order["do"] == "expand":
            lines.send(_addresses(order["address"]))
        else:
            child = os.fork()
            if child == 0:
                try:
                    _serve_pair(lines, order["core"])
                finally:
                    os._exit(0)
            lines.send({"child": child})
            _, status = os.waitpid(child, 0)
            lines.send({"ended": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    main()
