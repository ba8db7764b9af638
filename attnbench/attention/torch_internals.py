"""Private functions of torch, each wrapped in a function here.

Look here first when moving to another release of torch. Heavy modules are imported where they are
used: importing the compiler takes a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

_Function = TypeVar("_Function", bound=Callable[..., Any])


def eager(function: _Function) -> _Function:
    """Exclude a function from compilation, like ``torch.compiler.disable``.

    That imports the compiler at once; this does so only when the function is first called.
    """
    wrapper: _Function = torch._disable_dynamo(function)  # type: ignore[assignment, attr-defined]
    return wrapper


def is_concrete(tensor: Tensor) -> bool:
    """Whether values can be read: the tensor is neither traced, nor fake, nor under ``vmap``."""
    from torch._subclasses.fake_tensor import FakeTensor

    return not (
        torch.compiler.is_compiling()
        or isinstance(tensor, FakeTensor)
        or tensor.device.type == "meta"
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )


def transforms_active() -> bool:
    """Whether a transform of ``torch.func`` is active; the compiler traces through those itself."""
    return not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active()


def constant_for_compiler(function: _Function) -> _Function:
    """Make ``torch.compile`` call a function while it traces, and keep the result as a constant.

    ``torch.compiler.assume_constant_result`` does this too, and imports the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]  # what the compiler reads
    return function


def softmax_backward(grad: Tensor, weights: Tensor) -> None:
    """Convert the gradient of weights ``(..., L, S)`` to that of their scores, in place."""
    torch._softmax_backward_data(grad, weights, -1, weights.dtype, grad_input=grad)


def graph_breaks() -> int:
    """The number of graph breaks of ``torch.compile`` in this process."""
    from torch._dynamo.utils import counters

    return sum(counters["graph_break"].values())


class OperationMode(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has not typed it
    """A dispatch mode that also receives higher-order operators, each as one operation.

    FlexAttention is such an operator. Without a compiler, torch traces it at each call, and refuses
    to do so under a mode that does not declare itself as infrastructure.
    """

    supports_higher_order_operators = True

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Allow tracing under this mode."""
        return True

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise the compiler is imported (1 s), only to be skipped


def nested_tensors(value: Any) -> Iterator[Tensor]:
    """The tensors of nested tuples, lists and dictionaries; none of other objects."""
    return (leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor))
