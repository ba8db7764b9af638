"""The operation of a subject in whose backward pass a gradient ceases to be finite."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnbench.subject.tracing import is_theirs

_FRAME = re.compile(r'  File "(.+)", line (\d+), in .*\n    (.+)')


def gradient_origin(call: Callable[[], Tensor | None], leaves: Sequence[Tensor]) -> str:
    """Words that name the operations of a call, one or two, whose backward pass gives a gradient
    that is not finite for one that is; ``""`` where those of the leaves are finite.
    """
    with torch.enable_grad(), torch.autograd.set_detect_anomaly(True, check_nan=False):
        answer = call()  # its nodes know by which lines they were made
    if answer is None or answer.grad_fn is None or not bool(answer.isfinite().all()):
        return ""
    found: dict[str, None] = {}

    def noted(node: Any, left: Sequence[Tensor | None], given: Sequence[Tensor | None]) -> None:
        if _are_finite(given) and not _are_finite(left):
            found[_place(node)] = None

    nodes, seen = [answer.grad_fn], {answer.grad_fn, None}
    for node in nodes:  # which grow in number
        if node.next_functions:
            node.register_hook(functools.partial(noted, node))
        nodes += dict.fromkeys(n for n, _ in node.next_functions if n is not None and n not in seen)
        seen.update(nodes[-len(node.next_functions) :])
    gradients = torch.autograd.grad(answer.sum(), leaves, allow_unused=True)
    if _are_finite(gradients) or "" in found or not 0 < len(found) < 3:
        return ""
    return f"NaN or infinity arises in the backward pass of {' and of '.join(found)}"


def _are_finite(tensors: Sequence[Tensor | None]) -> bool:
    return all(t is None or bool(t.isfinite().all()) for t in tensors)


def _place(node: Any) -> str:
    """The name of a node, and the line of neither torch nor this package that made it."""
    name, _, of_torch = node.name().rpartition("Backward")
    for entry in reversed(node.metadata.get("traceback_", [])):
        for file, number, line in reversed(_FRAME.findall(entry)):
            if is_theirs(file):
                shown = name.lower() if of_torch else name
                return f"{shown} at {Path(file).name}:{number}: {line.strip()}"
    return ""
