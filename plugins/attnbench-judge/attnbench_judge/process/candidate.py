"""The candidate's side: it loads callees and answers requests with bytes.

It runs in a process of its own and shares a piece of memory and a socket with the judge, nothing
else. Nothing here is trusted: the judge believes its accusations, but no acquittal.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import json
import mmap
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _send(channel: socket.socket, message: dict[str, Any]) -> None:
    channel.send(json.dumps(message).encode())


def _found(path: str, attribute: str) -> Any:
    """The callee of a file or module; without an attribute, the one that the file defines."""
    if path.endswith(".py"):
        name = Path(path).stem
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    else:
        name = path.rpartition(".")[2]
        module = importlib.import_module(path)
    if attribute:
        found: Any = module
        for part in attribute.split("."):
            found = getattr(found, part)
        return found
    own = {
        name: thing
        for name, thing in vars(module).items()
        if not name.startswith("_")
        and callable(thing)
        and not isinstance(thing, type)
        and getattr(thing, "__module__", module.__name__) == module.__name__
    }
    for known in (name, "attention"):
        if known in own:
            return own[known]
    if len(own) != 1:
        told = ", ".join(own) or "no function"
        if type(vars(module).get(name)) is type:
            told += f", but the class {name}, and a function or a module is asked for"
        raise AttributeError(f"{path} defines {told}; name one as {path}:NAME")
    return next(iter(own.values()))


def _described(callee: Any) -> dict[str, Any]:
    """Name and arguments of a callee, as plain data."""
    called = callee.forward if isinstance(callee, torch.nn.Module) else callee
    told: dict[str, Any] = {
        "name": getattr(callee, "__name__", type(callee).__name__),
        "class": isinstance(callee, type),
        "text": "",
    }
    with contextlib.suppress(Exception):  # a docstring may be a property
        told["text"] = str(callee.__doc__ or "")[:4000]
    try:
        parameters = inspect.signature(called).parameters.values()
        told["arguments"] = [[p.name, p.kind.value, p.default is not p.empty] for p in parameters]
    except (TypeError, ValueError):
        told["arguments"] = None
    return told


class _Desk:
    """Answers requests: makes tensors of shared bytes, calls, and writes the output's bytes."""

    def __init__(self, callees: list[Any], memory: mmap.mmap) -> None:
        self.callees, self.memory = callees, memory
        self.own = _span(torch.frombuffer(memory, dtype=torch.uint8))
        self.kept: list[tuple[tuple[int, int], Tensor]] = []

    def tensor(self, told: list[Any]) -> Tensor:
        """The tensor whose dtype, shape, strides and place a request names.

        The place is where its storage begins, in bytes, and how many elements of the storage there
        are in all, and before the first of the tensor.
        """
        dtype, shape, strides, offset, count, before = told
        if not count:
            return torch.empty_strided(shape, strides, dtype=getattr(torch, dtype))
        flat = torch.frombuffer(
            self.memory, dtype=getattr(torch, dtype), count=count, offset=offset
        )
        return flat.as_strided(shape, strides, before)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Call with what a request names; the answer tells shape, dtype and faults.

        A request for an earlier output names how many came after it.
        """
        if "again" in request:
            output = self.kept[-1 - request["again"]][1]
        else:
            self.kept = self.kept[len(self.kept) - request["hold"] :]
            tensors: list[Tensor] = []
            for told in request["tensors"]:
                first = request["tensors"].index(told)  # one tensor may come twice
                tensors.append(self.tensor(told) if first == len(tensors) else tensors[first])
            keywords = {
                name: tensors[value["tensor"]] if isinstance(value, dict) else value
                for name, value in request["keywords"].items()
            }
            found = self.callees[request["callee"]](*tensors[: request["count"]], **keywords)
            output = found[0] if isinstance(found, tuple | list) and found else found
        if not isinstance(output, Tensor):
            return {"fault": "not_plain", "text": f"it is a {type(output).__name__}"}
        if "again" not in request and (fault := self.fault(output)):
            return fault
        dtype = str(output.dtype).removeprefix("torch.")
        told = {"shape": list(output.shape), "dtype": dtype}
        if output.numel() * output.element_size() > request["room"]:
            return {**told, "fault": "not_plain", "text": f"it is {list(output.shape)}"}
        if output.numel():
            place = [dtype, [output.numel()], [1], request["out"], output.numel(), 0]
            self.tensor(place).view(output.shape).copy_(output.detach())
        if "again" not in request:
            self.kept.append((_span(output), output))
        return told

    def fault(self, output: Tensor) -> dict[str, str]:
        """What is wrong with an output before its values are looked at."""
        if type(output) is not Tensor:
            return {"fault": "not_plain", "text": f"it is a {type(output).__name__}"}
        plain = output.dtype in _DTYPES and output.layout == torch.strided
        if not plain or output.device.type != "cpu":
            told = f"{output.dtype}, {output.layout} on {output.device}"
            return {"fault": "not_plain", "text": f"it is {told}"}
        first, last = _span(output)
        if first < self.own[1] and self.own[0] < last:
            return {"fault": "alias_of_input", "text": "it lies in the memory of the inputs"}
        if any(first < end and start < last for (start, end), _ in self.kept):
            return {"fault": "alias_of_output", "text": "it lies in the memory of an earlier one"}
        return {}


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first address of a tensor and the one after its last; none overlaps an empty one."""
    if not tensor.numel():
        return sys.maxsize, 0
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    count = 1 + sum((size - 1) * stride for size, stride in pairs)
    return tensor.data_ptr(), tensor.data_ptr() + count * tensor.element_size()


def _told(error: BaseException) -> dict[str, str]:
    """Why nothing was loaded, in one line, with the last line of code that is not this module's."""
    frames = [one for one in traceback.extract_tb(error.__traceback__) if one.filename != __file__]
    own = [one for one in frames if not one.filename.startswith("<frozen ")]
    where = f", at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    return {"unloaded": f"{type(error).__name__}: {' '.join(str(error).split())[:2000]}{where}"}


def main(file: int, shared: int) -> None:
    """Load the callees that the first message names; answer requests until the channel closes.

    Args:
        file: the channel.
        shared: the shared memory.
    """
    channel = socket.socket(fileno=file)
    given = json.loads(channel.recv(1 << 16))
    memory = mmap.mmap(shared, given["size"])
    torch.set_grad_enabled(False)
    try:
        file = given["callees"][0][0].endswith(".py")  # others in its folder stand behind all
        place = len(sys.path) if file else 0
        sys.path[place:place] = given["paths"]
        callees = [_found(*place) for place in given["callees"]]
        _send(channel, {"loaded": [_described(callee) for callee in callees]})
    except BaseException as error:
        _send(channel, _told(error))
        return
    callees = [c.eval() if isinstance(c, torch.nn.Module) else c for c in callees]
    desk = _Desk(callees, memory)
    while message := channel.recv(1 << 16):
        request = json.loads(message)
        try:
            answer = desk.answer(request)
        except Exception as error:
            answer = {"raised": type(error).__name__, "text": str(error)[:2000]}
        _send(channel, {**answer, "id": request["id"]})
