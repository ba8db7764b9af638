"""The slot server: a script that runs in the environment of one side; both sides run the same.

It uses only the public names of the side's attnbench. The engine that takes slots comes from the
attnbench of this script, which may be neither side's. The server imports torch and the side's
plugins once. For each pair it forks a child, which takes slots on request. Orders and answers are
lines of JSON on standard input and output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import attnbench

# by name, since these modules are the side's, not those beside this script
resolve = importlib.import_module("attnbench.testing").resolve
load_inputs = importlib.import_module("attnbench.saved_inputs").load_inputs

_TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Allowed difference of two outputs, over the largest value, since orders of sums may differ."""
_INPUTS = ("query", "key", "value")


def _load_timing() -> Any:
    """The package of the engine that takes slots, by its path beside this script."""
    path = Path(__file__).parents[1] / "timing" / "__init__.py"
    name = "_attnbench_timing"
    spec = importlib.util.spec_from_file_location(
        name, path, submodule_search_locations=[str(path.parent)]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    spec.loader.exec_module(package)
    for part in ("clocks", "rotation", "slots"):
        importlib.import_module(f"{name}.{part}")
    return package


_TIMING = _load_timing()


class Subject:
    """One side's subject at one case."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        (self.subject,) = resolve(row["address"])
        self.device = torch.device(row["device"])
        self.inputs = self._on_device(load_inputs(row["inputs"]))
        torch.manual_seed(row["seed"])
        query, key, value = (getattr(self.inputs, name) for name in _INPUTS)
        module = self.subject.make(query.shape[-1], key.shape[-1], value.shape[-1])
        self.module = module.to(self.device, query.dtype).eval()
        self.timer: Any = None

    def _on_device(self, inputs: Any, **tensors: torch.Tensor) -> Any:
        """Inputs on the device, with some tensors replaced."""
        tensors = {**dict(inputs.tensors()), **tensors}
        return inputs.replace(**{name: t.detach().to(self.device) for name, t in tensors.items()})

    def _run(self, inputs: Any) -> Any:
        """Make the timed call: the output, or the gradients of inputs and parameters."""
        if self.row["direction"] == "forward":
            with torch.no_grad():
                return self.subject.output(self.module, inputs)
        output = self.subject.output(self.module, inputs)
        sources = [getattr(inputs, name) for name in _INPUTS]
        sources += [p for p in self.module.parameters() if p.requires_grad]
        return torch.autograd.grad(output, sources, torch.ones_like(output), allow_unused=True)

    def _results(self, inputs: Any) -> list[torch.Tensor]:
        if self.row["direction"] != "forward":
            inputs = inputs.map(lambda tensor: tensor.detach().requires_grad_())
        results = self._run(inputs)
        tensors = [results] if isinstance(results, torch.Tensor) else results
        return [tensor for tensor in tensors if tensor is not None]

    def warm_up(self, slot_s: float, cap_s: float) -> dict[str, Any]:
        """Call the subject until it is warm; returns the seconds of a call and its clock."""
        is_serial = self.device.type == "cpu" and torch.get_num_threads() == 1
        clock = _TIMING.clocks.CPU_CLOCK if is_serial else _TIMING.clocks.WALL_CLOCK
        if self.device.type != "cpu":
            clock = _TIMING.clocks.EVENT_CLOCK
        pace = _TIMING.slots.Pace(clock, slot_s, cap_s)
        call = _TIMING.rotation.FreshCall(
            self._run,
            [getattr(self.inputs, name) for name in _INPUTS],
            lambda fresh: self.inputs.replace(**dict(zip(_INPUTS, fresh, strict=True))),
            self.row["direction"] != "forward",
        )
        call()
        self.timer = _TIMING.slots.Timer(call, self.device, pace)
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
            return {"reason": f"its parameters differ ({_first_line(error)})"}
        results = self._results(self._on_device(self.inputs, **other["inputs"]))
        factor = 1.0 if self.row["direction"] == "forward" else 10.0
        pairs = zip(results, other["results"], strict=True)
        return {"reason": next(filter(None, (_difference(a, b, factor) for a, b in pairs)), "")}


def _difference(output: torch.Tensor, target: torch.Tensor, factor: float) -> str:
    if output.shape != target.shape:
        return f"its output is {tuple(output.shape)}, and was {tuple(target.shape)}"
    if output.dtype != target.dtype:
        return f"its output is {output.dtype}, and was {target.dtype}"
    scale = float(target.double().abs().max()) if target.numel() else 0.0
    error = float((output.double() - target.double()).abs().max()) if target.numel() else 0.0
    if error <= factor * _TOLERANCES[output.dtype] * scale:
        return ""
    return f"its output differs by up to {error:.3g}, of values up to {scale:.3g}"


def _origin_of(spec: Any) -> str:
    """The file that contains a spec's code."""
    code = spec.attend if isinstance(spec, attnbench.KernelSpec) else spec.make
    for holder in (code, spec):  # an adapter's spec is made of what it calls
        code = getattr(holder, "callee", code)
    code = getattr(code, "func", code)  # of a partial
    code = type(code) if isinstance(code, torch.nn.Module) else code
    with contextlib.suppress(TypeError):
        return str(Path(inspect.getfile(inspect.unwrap(code))).resolve())
    module = sys.modules.get(getattr(code, "__module__", ""), None)
    return str(Path(getattr(module, "__file__", "") or "").resolve())


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _fault_of(error: BaseException) -> dict[str, str]:
    """The answer to an order that raised."""
    return {"error": f"{type(error).__name__}: {_first_line(error)}"}


def _names_inside(root: str) -> dict[str, Any]:
    """The subjects whose code is in a folder, except layers, which are not compared."""
    names = []
    for name in attnbench.subjects():
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
        self.subject: Subject | None = None
        self.settled = contextlib.ExitStack()

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        action = order["do"]
        if action == "prepare":
            self.subject = None
            self.settled.close()
            gc.collect()
            os.chdir(order["row"]["folder"])
            self.subject = Subject(order["row"])
            self.settled.enter_context(_TIMING.slots.settled(self.subject.device))
            report = self.subject.warm_up(order["slot_s"], order["cap_s"])
            return {**report, "origin": _origin_of(self.subject.subject.spec)}
        assert self.subject is not None
        timer = self.subject.timer
        if action == "clock":
            timer.clock = order["clock"]
        elif action == "shake":
            timer.shake(order["seed"])
        elif action == "slot":
            slot = timer.slot()
            return {"s": slot.seconds, "d": slot.disturbed}
        elif action == "answer":
            return self.subject.answer(order["path"], timed=order["timed"])
        elif action == "same":
            return self.subject.same(order["path"])
        return {}


def _orders() -> Iterator[dict[str, Any]]:
    buffer = sys.stdin.buffer
    while line := buffer.readline():
        yield json.loads(line)


def _send(answer: dict[str, Any]) -> None:
    os.write(_OUT, json.dumps(answer).encode() + b"\n")


def _serve_pair(core: int | None) -> None:
    """Carry out orders in a child until the order to end arrives."""
    if core is not None:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {core})
    child = _Child()
    for order in _orders():
        if order["do"] == "end":
            break
        try:
            _send(child.do(order))
        except BaseException as error:  # whatever a subject raises
            if isinstance(error, KeyboardInterrupt):
                raise
            _send(_fault_of(error))


def main() -> None:
    """Serve one side until its input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    try:
        attnbench.subjects()  # imports the plugins, once for all children
    except Exception as error:
        _send(_fault_of(error))
        return
    _send({"torch": torch.__version__, "attnbench": str(Path(attnbench.__file__).resolve())})
    gc.freeze()
    for order in _orders():
        if order["do"] == "names":
            _send(_names_inside(order["root"]))
            continue
        if order["do"] == "expand":
            _send(_addresses(order["address"]))
            continue
        child = os.fork()
        if child == 0:
            try:
                _serve_pair(order["core"])
            finally:
                os._exit(0)
        _send({"child": child})
        _, status = os.waitpid(child, 0)
        _send({"ended": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    _OUT = os.dup(1)
    os.dup2(2, 1)  # a subject's prints go to standard error
    main()
