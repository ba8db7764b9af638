"""The slot server: a script that runs in the environment of one side; both sides run the same.

It uses only the public names of the side's attnbench, and nothing of the attnbench that it belongs
to, which may be neither side's. The server imports torch and the side's plugins once. For each pair
it forks a child, which takes slots on request. Orders and answers are lines of JSON on standard
input and output.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import inspect
import json
import os
import random
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import attnbench

_LOOSE = {torch.float64: 1e-6, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 0.1}
"""Allowed difference of two outputs, over the largest value: the order of sums may differ."""
_SETTLED_BYTES = 31 * 2**20
_SHAKEN_BYTES = (2**12, 2**16, 2**20, 2**22)
"""Upper limits for the sizes of memory that is held so that tensors are placed elsewhere."""


class Subject:
    """One side's subject at one case."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.spec, self.scoring = _found(row)
        self.device = torch.device(row["device"])
        self.inputs, self.causal = _inputs(Path(row["inputs"]), self.device)
        if self.scoring is None:
            self._fold(self.spec.accepts)
        torch.manual_seed(row["seed"])
        self.module = self._made().to(self.device, self.inputs["query"].dtype).eval()
        self.clock: Callable[[], int] = time.perf_counter_ns
        self._held: list[torch.Tensor] = []
        self.call = self._call()

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

    def _call(self) -> Callable[[], object]:
        if self.row["direction"] == "forward":

            def forward() -> object:
                with torch.no_grad():
                    return self.output(self.inputs)

            return forward
        names = ("query", "key", "value")
        leaves = {n: t.requires_grad_() if n in names else t for n, t in self.inputs.items()}
        wanted = [leaves[name] for name in names]
        wanted += [p for p in self.module.parameters() if p.requires_grad]
        upstream = torch.ones_like(self.output(leaves).detach())

        def forward_backward() -> object:
            return torch.autograd.grad(self.output(leaves), wanted, upstream, allow_unused=True)

        return forward_backward

    def warm_up(self, slot_s: float, cap_s: float) -> dict[str, Any]:
        """Call it until it is warm; returns the seconds of a call and the clock that fits it."""
        own, every, wall = time.thread_time(), time.process_time(), time.perf_counter()
        waits, count, fastest = _usage().ru_nvcsw, 0, float("inf")
        while count < 3 or time.perf_counter() - wall < 2 * slot_s:
            started = time.perf_counter()
            self.call()
            self._wait()
            fastest = min(fastest, time.perf_counter() - started)
            count += 1
            if time.perf_counter() - wall > cap_s:
                break
        own, every = time.thread_time() - own, time.process_time() - every
        waits = _usage().ru_nvcsw - waits
        alone = every <= 1.1 * own + 1e-4 and waits <= 0.5 * count
        cpu = alone and self.device.type == "cpu" and torch.get_num_threads() == 1
        return {"each_s": fastest, "clock": "thread CPU time" if cpu else "wall clock"}

    def shake(self, seed: int) -> dict[str, Any]:
        """Move all tensors that the call reads and writes to other places in memory.

        Their relative placement changes the time of a call by 10 % and more, and all children of
        a server inherit the same heap.
        """
        chance = random.Random(seed)  # noqa: S311 -- places, not secrets
        self._held = [
            torch.empty(chance.randrange(1, limit), dtype=torch.uint8)
            for limit in chance.choices(_SHAKEN_BYTES, k=chance.randrange(4, 12))
        ]
        if self.row["direction"] == "forward":
            self.inputs = {name: tensor.clone() for name, tensor in self.inputs.items()}
        self.call()
        self._wait()
        return {}

    def slot(self, calls: int) -> dict[str, Any]:
        """Time a number of consecutive calls."""
        call, now, before = self.call, self.clock, _usage().ru_nivcsw
        started = now()
        for _ in range(calls):
            call()
        self._wait()
        return {"s": max(now() - started, 1) / calls / 1e9, "d": _usage().ru_nivcsw > before}

    def _wait(self) -> None:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)

    def answer(self, path: str) -> dict[str, Any]:
        """Save the parameters and the output for the other side."""
        with torch.no_grad():
            torch.save(
                {"state": self.module.state_dict(), "output": self.output(self.inputs)}, path
            )
        return {}

    def same(self, path: str) -> dict[str, Any]:
        """Why the output differs from the other side's; an empty reason if it does not."""
        other = torch.load(path, weights_only=True)
        try:
            self.module.load_state_dict(other["state"])
        except RuntimeError as error:
            return {"reason": f"its parameters differ ({_first_line(error)})"}
        with torch.no_grad():
            found, wanted = self.output(self.inputs), other["output"]
        if found.shape != wanted.shape:
            return {"reason": f"its output is {tuple(found.shape)}, and was {tuple(wanted.shape)}"}
        if found.dtype != wanted.dtype:
            return {"reason": f"its output is {found.dtype}, and was {wanted.dtype}"}
        scale = float(wanted.double().abs().max()) if wanted.numel() else 0.0
        apart = float((found.double() - wanted.double()).abs().max()) if wanted.numel() else 0.0
        if not apart <= _LOOSE[found.dtype] * scale:
            return {
                "reason": f"its output differs by up to {apart:.3g}, of values up to {scale:.3g}"
            }
        return {"reason": ""}


def _found(row: dict[str, Any]) -> tuple[Any, Any]:
    """The spec of an address and its scoring function: itself, a kernel's, or ``None``."""
    near: list[Any] = []
    if row["source"] is None or _is_distribution(row["source"]):
        spec = attnbench.get(row["name"])
    else:
        near = _attribute(row)
        named = [s for s in near if row["subject"] in ("", _name(s))]
        if not named:
            names = ", ".join(map(_name, near))
            raise LookupError(f"{row['subject']} is not among {names}")
        spec = named[0]
    if isinstance(spec, attnbench.KernelSpec):
        scoring = [
            s for s in near if isinstance(s, attnbench.ScoringSpec) and s.name == spec.scoring
        ]
        return spec, scoring[0] if scoring else attnbench.get(spec.scoring)
    return spec, spec if isinstance(spec, attnbench.ScoringSpec) else None


def _is_distribution(source: str) -> bool:
    try:
        metadata.distribution(source)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return not source.endswith(".py")


def _name(spec: Any) -> str:
    kernel = isinstance(spec, attnbench.KernelSpec)
    return f"{spec.scoring}/{spec.name}" if kernel else str(spec.name)


def _attribute(row: dict[str, Any]) -> list[Any]:
    module = _module(row["source"])
    if not hasattr(module, row["attribute"]):
        raise LookupError(f"{row['source']} has no {row['attribute']}")
    value = getattr(module, row["attribute"])
    return list(value) if isinstance(value, Iterable) else [value]


def _module(source: str) -> Any:
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise LookupError(f"there is no file {source}")
        sys.path.insert(0, str(path.parent))
        known = sys.modules.get(path.stem)
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    return importlib.import_module(source)


def _inputs(path: Path, device: torch.device) -> tuple[dict[str, torch.Tensor], bool]:
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 -- it is no dict
        causal = (file.metadata() or {}).get("is_causal") == "true"
    return tensors, causal


def _origin(spec: Any) -> str:
    """The file that contains a spec's code."""
    code = spec.attend if isinstance(spec, attnbench.KernelSpec) else spec.make
    with contextlib.suppress(TypeError):
        return str(Path(inspect.getfile(inspect.unwrap(code))).resolve())
    module = sys.modules.get(getattr(code, "__module__", ""), None)
    return str(Path(getattr(module, "__file__", "") or "").resolve())


def _usage() -> resource.struct_rusage:
    return resource.getrusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


class _Child:
    """The child of one pair: it holds one subject at a time."""

    def __init__(self) -> None:
        self.subject: Subject | None = None
        torch.empty(_SETTLED_BYTES, dtype=torch.uint8)  # glibc then keeps freed blocks

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        what = order["do"]
        if what == "prepare":
            self.subject = None
            gc.enable()
            gc.collect()
            os.chdir(order["row"]["folder"])
            self.subject = Subject(order["row"])
            gc.disable()
            found = self.subject.warm_up(order["slot_s"], order["cap_s"])
            return {**found, "origin": _origin(self.subject.spec)}
        assert self.subject is not None
        if what == "clock":
            cpu = order["clock"] == "thread CPU time"
            self.subject.clock = time.thread_time_ns if cpu else time.perf_counter_ns
            return {}
        if what == "shake":
            return self.subject.shake(order["seed"])
        if what == "slot":
            return self.subject.slot(order["calls"])
        if what == "answer":
            return self.subject.answer(order["path"])
        return self.subject.same(order["path"])


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
            last = traceback.format_exception(error)[-4:]
            _tell(
                {"error": f"{type(error).__name__}: {_first_line(error)}", "trace": "".join(last)}
            )


def _names(root: str) -> dict[str, Any]:
    """The subjects whose code is in a folder, except layers, which this server cannot measure."""
    inside = []
    layer = getattr(attnbench, "LayerSpec", ())  # an older revision has none
    for name in attnbench.subjects():
        if "(" in name:
            continue
        with contextlib.suppress(Exception):
            spec = attnbench.get(name)
            if not isinstance(spec, layer) and Path(_origin(spec)).is_relative_to(root):
                inside.append(name)
    return {"names": inside}


def _expanded(row: dict[str, Any]) -> dict[str, Any]:
    """Names of the specs of a file's attribute, or the error that it raised."""
    try:
        return {"names": [_name(spec) for spec in _attribute(row)]}
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {_first_line(error)}"}


def main() -> None:
    """Serve one side until its input ends."""
    torch.set_num_threads(int(sys.argv[1]))
    try:
        attnbench.subjects()  # imports the plugins, once for all children
    except Exception as error:
        _tell({"error": f"{type(error).__name__}: {_first_line(error)}"})
        return
    _tell({"torch": torch.__version__, "attnbench": str(Path(attnbench.__file__).resolve())})
    gc.freeze()
    for order in _orders():
        if order["do"] == "names":
            _tell(_names(order["root"]))
            continue
        if order["do"] == "expand":
            _tell(_expanded(order["row"]))
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
