"""The calls of torch that are not public, each behind a name of its own.

Whoever moves to another release of torch looks here first. Heavy modules are imported when they are
used: the compiler takes a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "OperationMode",
    "constant_for_compiler",
    "eager",
    "faked",
    "graph_breaks",
    "is_concrete",
    "softmax_backward",
    "transforms_active",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """A function that the compiler leaves alone, as ``torch.compiler.disable`` makes it.

    That imports the compiler at once; this does when the function is first called.
    """
    found: _Function = torch._disable_dynamo(function)  # type: ignore[assignment, attr-defined]
    return found


def is_concrete(tensor: Tensor) -> bool:
    """Whether values can be looked at: neither traced, nor fake, nor under ``vmap``."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not (
        torch.compiler.is_compiling()
        or isinstance(tensor, FakeTensor)
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def transforms_active() -> bool:
    """Whether a transform of ``torch.func`` is at work; a compiler traces through those itself."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def constant_for_compiler(function: _Function) -> _Function:
    """Have ``torch.compile`` call a function while it traces, and keep what it gives.

    ``torch.compiler.assume_constant_result`` does this too, and imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what the compiler reads
    return function


def softmax_backward(grad: Tensor, weights: Tensor) -> None:
    """Turn the gradient of weights ``(..., L, S)`` into that of their scores, in place."""
    torch._softmax_backward_data(grad, weights, -1, weights.dtype, grad_input=grad)


def graph_breaks() -> int:
    """How many graph breaks ``torch.compile`` has met in this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


def faked(call: nn.Module, *tensors: Tensor) -> Any:
    """What a call gives where tensors, parameters and buffers have shapes and no values."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()
    # state_dict() leaves out buffers that are not persistent, such as rotary tables
    own: dict[str, Tensor] = dict(call.named_parameters(remove_duplicate=False))
    own |= dict(call.named_buffers(remove_duplicate=False))
    state: dict[str, Tensor] = {name: mode.from_tensor(tensor) for name, tensor in own.items()}
    fakes = tuple(mode.from_tensor(tensor) for tensor in tensors)
    with mode:
        return torch.func.functional_call(call, state, fakes, tie_weights=False)


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has not typed it
    """A dispatch mode that is given higher-order operators too, each as one operation.

    FlexAttention is one; without a compiler around it, torch traces it at each call, which it
    refuses to do under a mode that does not say that it is one of torch's own kind.
    """

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let what is called under it be traced."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the compiler would be imported, 1 s, only to be told to keep out
