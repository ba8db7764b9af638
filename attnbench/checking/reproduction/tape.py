"""A tape that records what a check does with tensors, as source text that needs only torch.

It records every call of torch; a call of the subject's own module or kernel is one line. The final
comparison of an invariant, with everything that it depends on, becomes a script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name

from attnbench.checking.reproduction.source_lines import Lines, Step, Unwritable

_LITERAL = 64  # a tensor of unknown origin is written out up to this many elements
_INFIX = {
    "__add__": "+", "__sub__": "-", "__mul__": "*", "__truediv__": "/", "__matmul__": "@",
    "__eq__": "==", "__ne__": "!=", "__lt__": "<", "__le__": "<=", "__gt__": ">", "__ge__": ">=",
    "__and__": "&", "__or__": "|", "__xor__": "^", "__floordiv__": "//", "__pow__": "**",
    "add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "eq": "==", "lt": "<",
}  # fmt: skip
_REFLECTED = {"__radd__": "+", "__rsub__": "-", "__rmul__": "*", "__rtruediv__": "/"}


class Tape(Lines, TorchFunctionMode):
    """Records lines while it is entered as a context.

    Attributes:
        modules: the recorded modules, with their states when recorded.
        last_call: tensors and result of the subject's last call.
        raised_name: name of the exception that the subject raised last.
        paused: whether calls of torch are not recorded.
    """

    def __init__(self) -> None:
        super().__init__()
        self.modules: list[tuple[nn.Module, dict[str, Tensor]]] = []
        self.last_call: tuple[list[Tensor], object] | None = None
        self.raised_name = ""
        self.paused = False
        self._modes: dict[int, tuple[torch.dtype | None, bool]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` and record it."""
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        reads: set[int] = set()
        try:
            text, problem = self._call_text(func, args, kwargs, reads), ""
        except Unwritable as error:
            text, problem = "", str(error)
        result = func(*args, **kwargs)
        self.paused = True
        try:
            changed = self._changed_objects(func, args, kwargs)
            self.write(text, reads, result, changed=changed, problem=problem)
        finally:
            self.paused = False
        return result

    def _changed_objects(self, func: Any, args: Any, kwargs: Any) -> list[object]:
        """The objects that a call changes, by the name of the function."""
        name = getattr(func, "__name__", "")
        objects: list[object] = [v for v in kwargs.values() if isinstance(v, torch.Generator)]
        in_place = (
            name in ("__setitem__", "__set__", "backward")
            or (name.endswith("_") and not name.endswith("__"))
            or name in ("__iadd__", "__imul__", "__isub__", "__itruediv__")
        )
        if in_place and args:
            objects.append(args[0])
            objects += [  # calls of the module depend on it
                module
                for module, _ in self.modules
                if any(parameter is args[0] for parameter in module.parameters())
            ]
        if "out" in kwargs:
            objects.append(kwargs["out"])
        if name == "backward":
            objects.append(_GRADIENTS)
        return objects

    def _call_text(self, func: Any, args: Any, kwargs: Any, reads: set[int]) -> str:
        name = _function_name(func)
        if torch.is_autocast_enabled("cpu"):
            raise Unwritable("autocast is on")
        parts = [self.source(a, reads) for a in args]
        keywords = [f"{k}={self.source(v, reads)}" for k, v in kwargs.items()]
        if name == "torch.autograd.grad" or name.endswith(".backward"):
            reads.add(self.number(_GRADIENTS))
        if not name.startswith("torch.Tensor."):
            return f"{name}({', '.join([*parts, *keywords])})"
        method = name.removeprefix("torch.Tensor.")
        head, *rest = parts
        if method.endswith(".__get__"):
            if method.startswith("grad."):
                reads.add(self.number(_GRADIENTS))
            return f"{head}.{method.removesuffix('.__get__')}"
        if method.endswith(".__set__"):
            return f"{head}.{method.removesuffix('.__set__')} = {rest[0]}"
        if method in _INFIX and len(rest) == 1 and not keywords:
            return f"({head} {_INFIX[method]} {rest[0]})"
        if method in _REFLECTED and len(rest) == 1:
            return f"({rest[0]} {_REFLECTED[method]} {head})"
        if method == "__invert__":
            return f"(~{head})"
        if method == "__getitem__":
            return f"{head}[{self._index(args[1], reads)}]"
        if method == "__setitem__":
            return f"{head}[{self._index(args[1], reads)}] = {rest[1]}"
        return f"{head}.{method}({', '.join([*rest, *keywords])})"

    def introduce(self, value: Tensor | nn.Module | torch.Generator) -> None:
        """Write the line that creates an object that appears as an argument for the first time."""
        if isinstance(value, torch.Generator):
            seed = value.initial_seed()
            number = self.number(value)
            self.steps.append(
                Step(f"‹{number}› = torch.Generator().manual_seed({seed})", set(), {number})
            )
            return
        if isinstance(value, nn.Module):
            self.record_copy(value)
            return
        for module, _ in self.modules:
            for name, parameter in module.named_parameters():
                if parameter is value:
                    owner, number = self.number(module), self.number(value)
                    text = f"‹{number}› = ‹{owner}›.get_parameter({name!r})"
                    self.steps.append(Step(text, {owner}, {number}))
                    return
        if type(value) is not Tensor or value.numel() > _LITERAL:
            raise Unwritable(f"a tensor {tuple(value.shape)} of unknown origin")
        grad = value.requires_grad
        was_paused, self.paused = self.paused, True
        items = self.source(value.detach().cpu().tolist(), set())
        self.paused = was_paused
        number = self.number(value)
        suffix = ", requires_grad=True" if grad else ""
        text = f"‹{number}› = torch.tensor({items}, dtype={value.dtype}{suffix})"
        self.steps.append(Step(text, set(), {number}))

    def record_module(self, module: nn.Module, text: str, seed: int | None) -> None:
        """Write the line that makes a module."""
        number, generator = self.number(module), self.number(_GENERATOR)
        if seed is not None:
            self.steps.append(Step(f"torch.manual_seed({seed})", set(), {generator}))
        self.steps.append(Step(f"‹{number}› = {text}", {generator}, {number, generator}))
        self.modules.append((module, _state(module)))

    def record_change(self, module: nn.Module, text: str) -> None:
        """Write a line that changes the state of a module, which is ``@`` in the text."""
        number = self.number(module)
        self.steps.append(Step(text.replace("@", f"‹{number}›"), {number}, {number}))
        self.modules = [(m, _state(m) if m is module else state) for m, state in self.modules]

    def record_copy(self, module: nn.Module) -> None:
        """Write the line that copies a recorded module, when its copy first appears."""
        state = _state(module)
        for other, earlier in self.modules:
            if type(other) is type(module) and _equal(state, earlier):
                source, number = self.number(other), self.number(module)
                line = f"‹{number}› = copy.deepcopy(‹{source}›)"
                self.steps.append(Step(line, {source}, {number}))
                self.modules.append((module, state))
                return
        raise Unwritable("a module with a state of its own")

    def record_call(self, function: Callable[..., Any], text: str, args: Any, kwargs: Any) -> Any:
        """Call the subject's own code and record it as one line.

        Args:
            function: function to call.
            text: source text of the function; empty for the module that is the first of ``args``.
            args, kwargs: arguments of the call.
        """
        reads: set[int] = set()
        problem = ""
        try:
            parts = [self.source(a, reads) for a in args]
            parts += [f"{k}={self.source(v, reads)}" for k, v in kwargs.items()]
            if not text:
                text, parts = parts[0], parts[1:]
                self._record_mode(args[0])
            line = f"{text}({', '.join(parts)})"
        except Unwritable as error:
            line, problem = "", str(error)
        inputs = [a for a in args if isinstance(a, Tensor)]
        self.paused = True
        try:
            result = function(*args, **kwargs)
        except Exception as error:
            self.raised_name = type(error).__name__
            self.write(line, reads, changed=[_FAILED_CALL], problem=problem)
            raise
        finally:
            self.paused = False
        changed = [a for a in (*args, *kwargs.values()) if isinstance(a, Tensor | nn.Module)]
        self.last_call = (inputs, result)
        self.write(line, reads, result, changed=changed, problem=problem)
        return result

    def _record_mode(self, module: nn.Module) -> None:
        """Write the lines that set the dtype and mode that a module has at a call."""
        number = self.number(module)
        tensor = next((p for p in module.parameters() if p.is_floating_point()), None)
        state = (None if tensor is None else tensor.dtype, module.training)
        if self._modes.get(number) == state:
            return
        self._modes[number] = state
        dtype = "" if tensor is None else f".to({tensor.dtype})"
        line = f"‹{number}›{dtype}.train({module.training})"
        self.steps.append(Step(line, {number}, {number}))

    def owns(self, module: nn.Module) -> bool:
        """Whether a module was made on this tape, or is a copy of such a module."""
        if any(module is original for original, _ in self.modules):
            return True
        return any(type(module) is type(original) for original, _ in self.modules)

    @property
    def has_raised(self) -> bool:
        """Whether a call of the subject raised."""
        return self.knows(_FAILED_CALL)

    @property
    def failed_call(self) -> int:
        """The number of the variable that stands for the result of a call that raised."""
        return self.number(_FAILED_CALL)


class _Mark:
    """A placeholder for something that lines depend on, but that is not an object of torch."""


_GRADIENTS, _GENERATOR, _FAILED_CALL = _Mark(), _Mark(), _Mark()


def _state(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def _equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        a[name].shape == b[name].shape
        and torch.equal(a[name].double(), b[name].to(a[name].dtype).double())
        for name in a
    )


def _function_name(func: Any) -> str:
    name = resolve_name(func)
    if name is None:
        attribute = getattr(func, "__name__", "")
        spaces = {"torch": torch, "torch.Tensor": Tensor, "torch.autograd": torch.autograd}
        for prefix, space in spaces.items():
            if getattr(space, attribute, None) == func:
                return f"{prefix}.{attribute}"
        raise Unwritable(f"the function {attribute or func!r}")
    return str(name)
