"""The operation of a subject in whose backward pass a gradient ceases to be finite."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.subject.tracing import is_theirs

_FRAME = re.compile(r'  File "(.+)", line (\d+), in .*\n    (.+)')


def gradient_origin(call: Callable[[], Tensor | None], leaves: Sequence[Tensor]) -> str:
    """The first operation without whose NaN and infinity all gradients of a call are finite.

    Args:
        call: it gives a tensor with a graph, whose sum is differentiated.
        leaves: those with respect to which it is.

    Returns:
        Words that name it with its line, or ``""``.
    """
    with torch.enable_grad(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        answer = call()  # its nodes know by which lines they were made
    if answer is None or answer.grad_fn is None or not bool(answer.isfinite().all()):
        return ""
    total = answer.sum()
    nodes = _nodes(total.grad_fn)
    is_finite, found = _passed(total, leaves, nodes, ())
    if is_finite:
        return ""
    needed = [n for n in found if not _passed(total, leaves, nodes, {*found} - {n})[0]]
    if not needed or not (place := _place(nodes[needed[0]])):
        return ""
    name, _, of_torch = nodes[needed[0]].name().rpartition("Backward")
    name = name.lower() if of_torch else name
    return f"NaN or infinity arises in the backward pass of {name} at {place}"


def _nodes(last: Any) -> list[Any]:
    """The nodes of a graph, each once."""
    nodes: dict[Any, None] = {last: None}
    waiting = [last]
    while waiting:
        for node, _ in waiting.pop().next_functions:
            if node is not None and node not in nodes:
                nodes[node] = None
                waiting.append(node)
    return [*nodes]


def _passed(
    total: Tensor, leaves: Sequence[Tensor], nodes: Sequence[Any], replaced: Collection[int]
) -> tuple[bool, list[int]]:
    """Whether all gradients are finite, and the numbers of the nodes that make them otherwise.

    Those of some nodes become 0 where they are not.
    """
    found: list[int] = []

    def noted(number: int, left: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> Any:
        if not _are_finite(given) or _are_finite(left):
            return None
        found.append(number)
        if number not in replaced:
            return None
        return tuple(t if t is None else t.nan_to_num(0.0, 0.0, 0.0) for t in left)

    hooks = [
        node.register_hook(functools.partial(noted, n))
        for n, node in enumerate(nodes)
        if node.next_functions
    ]
    gradients = torch.autograd.grad(total, leaves, retain_graph=True, allow_unused=True)
    for hook in hooks:
        hook.remove()
    return _are_finite(gradients), found


def _are_finite(tensors: Sequence[Tensor | None]) -> bool:
    return all(t is None or bool(t.isfinite().all()) for t in tensors)


def _place(node: Any) -> str:
    """The line of neither torch nor this package that made a node."""
    for entry in reversed(node.metadata.get("traceback_", [])):
        for file, number, line in reversed(_FRAME.findall(entry)):
            if is_theirs(file):
                return f"{Path(file).name}:{number}: {line.strip()}"
    return ""
