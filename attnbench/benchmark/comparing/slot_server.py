"""The slot server: a script that runs in the environment of one side; both sides run the same.

It uses only the public names of the side's attnbench. Of the attnbench that it belongs to, which
may be neither side's, it uses the engine that takes slots and :mod:`side_subjects`. The server
imports torch and the side's plugins once. For each pair it forks a child, which takes slots on
request. Orders and answers are lines of JSON on standard input and output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import attnbench

_LOOSE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Allowed difference of two outputs, over the largest value: the order of sums may differ."""
_VARIED = ("query", "key", "value")


def _loaded(name: str, path: Path) -> Any:
    """A module or package of the attnbench that this script belongs to, by its path."""
    folder = [str(path.parent)] if path.name == "__init__.py" else None
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folder)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_HERE = Path(__file__).parent
_SUBJECTS = _loaded("_attnbench_side_subjects", _HERE / "side_subjects.py")
_TIMING = _loaded("_attnbench_timing", _HERE.parent / "timing" / "__init__.py")
for _part in ("clocks", "rotation", "slots"):
    importlib.import_module(f"_attnbench_timing.{_part}")


class Subject:
    """One side's subject at one case."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.spec, self.scoring = _SUBJECTS.find(row)
        self.device = torch.device(row["device"])
        self.inputs, self.causal = _SUBJECTS.inputs_of(Path(row["inputs"]), self.device)
        if self.scoring is None:
            self._fold(self.spec.accepts)
        torch.manual_seed(row["seed"])
        self.module = self._made().to(self.device, self.inputs["query"].dtype).eval()
        self.timer: Any = None

    def _made(self) -> torch.nn.Module:
        sizes = [self.inputs[name].shape[-1] for name in ("query", "key", "value")]
        maker = self.scoring or self.spec
        made = maker.make(*sizes[: 2 if self.scoring else 3], **self.row["options"])
        assert isinstance(made, torch.nn.Module)
        return made

    def _fold(self, accepts: tuple[str, ...]) -> None:
        """Express in the mask those arguments that the mechanism does not accept as keywords."""
        query, mask = self.inputs["query"], self.inputs.get("attn_mask")
        q_len, kv_len = query.shape[-2], self.inputs["key"].shape[-2]
        column = torch.arange(kv_len, device=self.device)
        allowed = torch.ones(q_len, kv_len, dtype=torch.bool, device=self.device)
        if self.causal and "is_causal" not in accepts:  # aligned to the bottom right
            last = torch.arange(q_len, device=self.device)[:, None] + kv_len - q_len
            allowed, self.causal = column <= last, False
        if "valid_lens" in self.inputs and "valid_lens" not in accepts:
            lens = self.inputs.pop("valid_lens")  # (B,) or (B, L)
            lens = lens.reshape(len(lens), *[1] * (query.dim() - 3), -1, 1)
            allowed = allowed & (column < lens)
        if allowed.all():
            return
        if mask is not None and mask.is_floating_point():
            self.inputs["attn_mask"] = mask.masked_fill(~allowed, float("-inf"))
        else:
            self.inputs["attn_mask"] = allowed if mask is None else mask & allowed

    def output(self, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
        """Compute the output by the same call that attnbench itself makes."""
        query, key, value = (tensors[name] for name in ("query", "key", "value"))
        mask, lengths = tensors.get("attn_mask"), tensors.get("valid_lens")
        grouped = query.dim() > 2 and query.shape[-3] != key.shape[-3]
        if self.scoring is not None:
            kernel = "plain" if self.spec is self.scoring else self.spec
            found = attnbench.attend(
                self.module,
                query,
                key,
                value,
                attn_mask=mask,
                valid_lens=lengths,
                is_causal=self.causal,
                enable_gqa=grouped,
                kernel=kernel,
            )
            assert isinstance(found, torch.Tensor)
            return found
        more: dict[str, Any] = {}
        if self.causal:
            more["is_causal"] = True
        if lengths is not None:
            more["valid_lens"] = lengths
        if grouped:
            if "enable_gqa" not in self.spec.accepts:
                raise ValueError("it needs as many key heads as query heads (no enable_gqa)")
            more["enable_gqa"] = True
        result = self.module(query, key, value, attn_mask=mask, **more)
        found = result[0] if isinstance(result, tuple) else result
        assert isinstance(found, torch.Tensor)
        return found

    def _run(self, tensors: dict[str, torch.Tensor]) -> Any:
        """What is timed: the output, or the gradients of inputs and parameters."""
        if self.row["direction"] == "forward":
            with torch.no_grad():
                return self.output(tensors)
        output = self.output(tensors)
        wanted = [tensors[name] for name in _VARIED]
        wanted += [p for p in self.module.parameters() if p.requires_grad]
        return torch.autograd.grad(output, wanted, torch.ones_like(output), allow_unused=True)

    def warm_up(self, slot_s: float, cap_s: float) -> dict[str, Any]:
        """Call it until it is warm; returns the seconds of a call and the clock that fits it."""
        one = self.device.type == "cpu" and torch.get_num_threads() == 1
        usual = _TIMING.clocks.CPU_CLOCK if one else _TIMING.clocks.WALL_CLOCK
        if self.device.type != "cpu":
            usual = _TIMING.clocks.EVENT_CLOCK
        pace = _TIMING.slots.Pace(usual, slot_s, cap_s)
        call = _TIMING.rotation.FreshCall(
            self._run,
            [self.inputs[name] for name in _VARIED],
            lambda fresh: {**self.inputs, **dict(zip(_VARIED, fresh, strict=True))},
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
        given, results = self.inputs, _several(self._run(self._leaves(self.inputs)))
        if timed:
            given, results = samples.kept[0].inputs, list(samples.kept[0].copies)
        content = {
            "state": self.module.state_dict(),
            "inputs": {name: tensor.detach() for name, tensor in given.items()},
            "results": results,
        }
        torch.save(content, path)
        return {"fault": ""}

    def _leaves(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        if self.row["direction"] == "forward":
            return tensors
        return {n: t.detach().requires_grad_(n in _VARIED) for n, t in tensors.items()}

    def same(self, path: str) -> dict[str, Any]:
        """Why the results differ from the other side's; an empty reason if they do not."""
        other = torch.load(path, weights_only=True)
        try:
            self.module.load_state_dict(other["state"])
        except RuntimeError as error:
            return {"reason": f"its parameters differ ({_SUBJECTS.first_line(error)})"}
        given = {name: tensor.to(self.device) for name, tensor in other["inputs"].items()}
        results = _several(self._run(self._leaves(given)))
        loose = 1.0 if self.row["direction"] == "forward" else 10.0
        pairs = zip(results, other["results"], strict=True)
        return {"reason": next(filter(None, (_unlike(a, b, loose) for a, b in pairs)), "")}


def _several(results: Any) -> list[torch.Tensor]:
    if isinstance(results, torch.Tensor):
        return [results]
    return [tensor for tensor in results if tensor is not None]


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
            return {**found, "origin": _SUBJECTS.origin_of(self.subject.spec)}
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
            _tell(_SUBJECTS.fault_of(error))


def main() -> None:
    """Serve one side until its input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    try:
        attnbench.subjects()  # imports the plugins, once for all children
    except Exception as error:
        _tell(_SUBJECTS.fault_of(error))
        return
    _tell({"torch": torch.__version__, "attnbench": str(Path(attnbench.__file__).resolve())})
    gc.freeze()
    for order in _orders():
        if order["do"] == "names":
            _tell(_SUBJECTS.names_inside(order["root"]))
            continue
        if order["do"] == "expand":
            _tell(_SUBJECTS.names_in_attribute(order["row"]))
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
