"""Counts of the operations in the matrix products of a call.

Every operator that reaches the device is counted once: a multiplication and an addition per pair of
elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils.flop_counter import flop_registry

from attnbench.attention.torch_internals import OperationMode
from attnbench.calling.results import nested_tensors

_NAMESPACES = frozenset(("aten", "prim", "prims"))


@dataclass(frozen=True)
class Counts:
    """The operations of a call.

    Args:
        matmul_operations: operations in matrix products, counted from their shapes by torch's
            counter or, for operators that it does not know, by this module.
        opaque: whether the call uses an operator that is not torch's, so that its operations are
            unknown.
    """

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
        self.products, self.opaque = 0, False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        packet = getattr(func, "overloadpacket", func)
        self.opaque |= getattr(func, "namespace", "aten") not in _NAMESPACES
        tensors = [*nested_tensors(args), *nested_tensors(kwargs or {})]
        product = _product(str(getattr(packet, "__name__", packet)), tensors)
        if product is None and (formula := flop_registry.get(packet)):
            product = int(formula(*args, **(kwargs or {}), out_val=result))
        self.products += product or 0
        return result


def count(call: Callable[[], object]) -> Counts:
    """Run a call once and count its operations."""
    counter = _Counter()
    with counter:
        call()
    return Counts(counter.products, counter.opaque)
