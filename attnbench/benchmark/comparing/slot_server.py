"""The slot server: a script that runs in the environment of one side; both sides run the same.

It uses only the public names of the side's attnbench. Of the attnbench that it belongs to, which
may be neither side's, it uses the engine that takes slots. The server imports torch and the side's
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

# by name, since they are the side's and none of the attnbench that this script belongs to
resolve = importlib.import_module("attnbench.testing").resolve
load_inputs = importlib.import_module("attnbench.saved_inputs").load_inputs

_LOOSE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Allowed difference of two outputs, over the largest value: the order of sums may differ."""
_VARIED = ("query", "key", "value")


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
        self.inputs = self._holding(load_inputs(row["inputs"]))
        torch.manual_seed(row["seed"])
        query, key, value = (getattr(self.inputs, name) for name in _VARIED)
        module = self.subject.make(query.shape[-1], key.shape[-1], value.shape[-1])
        self.module = module.to(self.device, query.dtype).eval()
        self.timer: Any = None

    def _holding(self, inputs: Any, **tensors: torch.Tensor) -> Any:
        """Inputs on the device, with some tensors replaced."""
        tensors = {**dict(inputs.tensors()), **tensors}
        return inputs.replace(**{name: t.detach().to(self.device) for name, t in tensors.items()})

    def _run(self, inputs: Any) -> Any:
        """What is timed: the output, or the gradients of inputs and parameters."""
        if self.row["direction"] == "forward":
            with torch.no_grad():
                return self.subject.output(self.module, inputs)
        output = self.subject.output(self.module, inputs)
        wanted = [getattr(inputs, name) for name in _VARIED]
        wanted += [p for p in self.module.parameters() if p.requires_grad]
        return torch.autograd.grad(output, wanted, torch.ones_like(output), allow_unused=True)

    def _results(self, inputs: Any) -> list[torch.Tensor]:
        if self.row["direction"] != "forward":
            inputs = inputs.map(lambda tensor: tensor.detach().requires_grad_())
        results = self._run(inputs)
        several = [results] if isinstance(results, torch.Tensor) else results
        return [tensor for tensor in several if tensor is not None]

    def warm_up(self, slot_s: float, cap_s: float) -> dict[str, Any]:
        """Call it until it is warm; returns the seconds of a call and the clock that fits it."""
        one = self.device.type == "cpu" and torch.get_num_threads() == 1
        usual = _TIMING.clocks.CPU_CLOCK if one else _TIMING.clocks.WALL_CLOCK
        if self.device.type != "cpu":
            usual = _TIMING.clocks.EVENT_CLOCK
        pace = _TIMING.slots.Pace(usual, slot_s, cap_s)
        call = _TIMING.rotation.FreshCall(
            self._run,
            [getattr(self.inputs, name) for name in _VARIED],
            lambda fresh: self.inputs.replace(**dict(zip(_VARIED, fresh, strict=True))),
            self.row["direction"] != "forward",
        )
        call()
        self.timer = _TIMING.slots.Timer(call, self.device, pace)
        return {"each_s": self.timer.seconds, "clock": self.timer.clock}

    def answer(self, path: str, *, timed: bool) -> dict[str, Any]:
        """Save parameters, inputs and results for the other side: of this case, or as timed."""
        samples = self.timer.samples
        if timed and samples.form_fault():
            return {"fault": samples.form_fault()}
        given, results = self.inputs, self._results(self.inputs)
        if timed:
            given, results = samples.kept[0].inputs, list(samples.kept[0].copies)
        content = {
            "state": self.module.state_dict(),
            "inputs": {name: tensor.detach() for name, tensor in given.tensors()},
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
        results = self._results(self._holding(self.inputs, **other["inputs"]))
        loose = 1.0 if self.row["direction"] == "forward" else 10.0
        pairs = zip(results, other["results"], strict=True)
        return {"reason": next(filter(None, (_unlike(a, b, loose) for a, b in pairs)), "")}


def _unlike(found: torch.Tensor, wanted: torch.Tensor, loose: float) -> str:
    if found.shape != wanted.shape:
        return f"its output is {tuple(found.shape)}, and was {tuple(wanted.shape)}"
    if found.dtype != wanted.dtype:
        return f"its output is {found.dtype}, and was {wanted.dtype}"
    scale = float(wanted.double().abs().max()) if wanted.numel() else 0.0
    apart = float((found.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
    if apart <= loose * _LOOSE[found.dtype] * scale:
        return ""
    return f"its output differs by up to {apart:.3g}, of values up to {scale:.3g}"


def _origin_of(spec: Any) -> str:
    """The file that contains a spec's code."""
    code = spec.attend if isinstance(spec, attnbench.KernelSpec) else spec.make
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
    inside = []
    for name in attnbench.subjects():
        with contextlib.suppress(Exception):  # what cannot be looked up is not compared
            (subject,) = resolve(name)
            code = Path(_origin_of(subject.spec))
            if not subject.options and subject.kind != "layer" and code.is_relative_to(root):
                inside.append(name)
    return {"names": inside}


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
        what = order["do"]
        if what == "prepare":
            self.subject = None
            self.settled.close()
            gc.collect()
            os.chdir(order["row"]["folder"])
            self.subject = Subject(order["row"])
            self.settled.enter_context(_TIMING.slots.settled(self.subject.device))
            found = self.subject.warm_up(order["slot_s"], order["cap_s"])
            return {**found, "origin": _origin_of(self.subject.subject.spec)}
        assert self.subject is not None
        timer = self.subject.timer
        if what == "clock":
            timer.clock = order["clock"]
        elif what == "shake":
            timer.shake(order["seed"])
        elif what == "slot":
            slot = timer.slot()
            return {"s": slot.seconds, "d": slot.disturbed}
        elif what == "answer":
            return self.subject.answer(order["path"], timed=order["timed"])
        elif what == "same":
            return self.subject.same(order["path"])
        return {}


def _orders() -> Iterator[dict[str, Any]]:
    buffer = sys.stdin.buffer
    while line := buffer.readline():
        yield json.loads(line)


def _tell(answer: dict[str, Any]) -> None:
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
            _tell(child.do(order))
        except BaseException as error:  # whatever a subject raises
            if isinstance(error, KeyboardInterrupt):
                raise
            _tell(_fault_of(error))


def main() -> None:
    """Serve one side until its input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    try:
        attnbench.subjects()  # imports the plugins, once for all children
    except Exception as error:
        _tell(_fault_of(error))
        return
    _tell({"torch": torch.__version__, "attnbench": str(Path(attnbench.__file__).resolve())})
    gc.freeze()
    for order in _orders():
        if order["do"] == "names":
            _tell(_names_inside(order["root"]))
            continue
        if order["do"] == "expand":
            _tell(_addresses(order["address"]))
            continue
        child = os.fork()
        if child == 0:
            try:
                _serve_pair(order["core"])
            finally:
                os._exit(0)
        _tell({"child": child})
        _, status = os.waitpid(child, 0)
        _tell({"ended": os.waitstatus_to_exitcode(status)})


if __name__ == "__main__":
    _OUT = os.dup(1)
    os.dup2(2, 1)  # a subject's prints go to standard error
    main()
