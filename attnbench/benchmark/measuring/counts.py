"""Counts of the operations that a call executes.

Every operator that reaches the device is counted once. A matrix product counts a multiplication and
an addition per pair of elements; other operators count one operation per element, and data movement
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from attnbench.attention.torch_internals import COPIES, OperationMode
from attnbench.subject.tensors import nested_tensors

_MOVES = COPIES | {
    "cat",
    "stack",
    "fill_",
    "zero_",
    "constant_pad_nd",
    "repeat",
    "index",
    "index_select",
    "gather",
    "scatter",
    "scatter_",
    "eye",
    "empty_strided",
    "index_put_",
    "new_empty_strided",
    "slice_scatter",
    "select_scatter",
    "select_backward",
    "slice_backward",
}
_NAMESPACES = frozenset(("aten", "prim", "prims"))
_FREE = frozenset(
    (
        "empty",
        "new_empty",
        "empty_like",
        "empty_strided",
        "new_empty_strided",
        "detach",
        "_unsafe_view",
        "_reshape_alias",
        "lift_fresh",
        "alias",
    )
)


@dataclass(frozen=True)
class Counts:
    """The operations of a call.

    Args:
        operations: operations of all kinds.
        matmul_operations: operations in matrix products, counted from their shapes by torch's
            counter or, for operators that it does not know, by this module.
        opaque: whether the call uses an operator that is not torch's, so that its operations are
            unknown.
    """

    operations: int
    matmul_operations: int
    opaque: bool = False


def _product(name: str, tensors: list[Tensor]) -> int | None:
    """The operations of an operator's matrix products; ``None`` for those that torch counts."""
    if name == "addbmm":
        return 2 * tensors[1].numel() * tensors[2].shape[-1]
    if name in ("mv", "dot"):
        return 2 * tensors[0].numel()
    if name.startswith("_scaled_dot_product_"):
        backward = name.endswith("_backward")
        query, key, value = tensors[1:4] if backward else tensors[:3]
        scores = math.prod(query.shape[:-1]) * key.shape[-2]  # under a causal mask, too
        inner, outer = query.shape[-1], value.shape[-1]
        # backward: inner for scores and gradients of query and key; outer for weights and value
        return 2 * scores * (3 * inner + 2 * outer if backward else inner + outer)
    return None


class _Counter(OperationMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's
        self.operations = self.products = 0
        self.opaque = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", func)
        self.opaque |= getattr(func, "namespace", "aten") not in _NAMESPACES
        name = str(getattr(packet, "__name__", packet))
        if getattr(func, "is_view", False) or name in _FREE:
            return result
        arguments = [*nested_tensors(args), *nested_tensors(kwargs or {})]
        results = list(nested_tensors(result))
        if not results:
            return result  # a query, such as whether a value is zero
        product = _product(name, arguments)
        if product is None:
            formula = flop_registry.get(packet)
            product = int(formula(*args, **(kwargs or {}), out_val=result)) if formula else 0
        self.products += product
        if not product and name not in _MOVES:
            product = max(t.numel() for t in (*arguments, *results))
        self.operations += product
        return result


def count(call: Callable[[], object]) -> Counts:
    """Run a call once and count its operations."""
    counter = _Counter()
    with counter:
        result = call()
    del result
    return Counts(
        operations=counter.operations,
        matmul_operations=counter.products,
        opaque=counter.opaque,
    )
