"""Loops over all query-key pairs, written as functions of tensors, and how they are run.

On an accelerator torch compiles them, once for all sizes from 2 up: their first run is on tensors
of sizes chosen here, so that the graph does not depend on which call comes first. If compilation
fails, they run eagerly, with one warning.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from attnbench_plugins.kernels._library import NotCompiledWarning

__all__ = ["Loops"]

_OPTIONS: dict[str, Any] = {
    # keep the terms of a sum inside its loop however long they are: stored, they take L·S·h numbers
    "realize_opcount_threshold": 10_000,
    "realize_reads_threshold": 10_000,
    "realize_acc_reads_threshold": 10_000,
}


@contextmanager
def _same_modes() -> Iterator[None]:
    """Fix the modes on which graphs are guarded, so that each function has a single graph."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Loops:
    """A function of tensors, compiled on first use.

    Args:
        function: function of tensors whose sizes, except the first, are at least 2.
        example: returns arguments to compile with for a dtype, a device and a number of items.
    """

    broken = False
    refusal = ""
    """Why they are broken, on whatever device it was."""

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        example: Callable[[torch.dtype, torch.device, int], tuple[Tensor, ...]],
    ) -> None:
        self.function = function
        self.example = example
        self.compiled: Callable[..., tuple[Tensor, ...]] | None = None
        self.warm: set[tuple[torch.dtype, str]] = set()

    def eager(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the function eagerly."""
        return self.function(*args)

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """Run the function, compiled if possible."""
        with _same_modes():
            # graphs are also guarded on requires_grad and on inference tensors
            args = tuple(t.clone() if t.is_inference() else t.detach() for t in args)
            if Loops.broken or not self._ready(args[0]):
                return self.function(*args)
            assert self.compiled is not None
            return self.compiled(*args)

    def _ready(self, like: Tensor) -> bool:
        """Compile for this dtype and device unless done before; ``False`` if that fails."""
        if (like.dtype, like.device.type) in self.warm:
            return True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of torch's modules that are imported only now
                if self.compiled is None:
                    self.compiled = torch.compile(self.function, dynamic=True, options=_OPTIONS)
                for items in (3, 1):
                    self.compiled(*self.example(like.dtype, like.device, items))
        except Exception as error:  # whatever the compiler raises, the eager version works
            Loops.broken = True
            Loops.refusal = (
                f"torch.compile failed on {like.device.type} ({type(error).__name__}: "
                f"{str(error).strip().partition(chr(10))[0]})"
            )
            warnings.warn(
                f"attnbench's kernels run eagerly, many times slower: {Loops.refusal}. "
                f"On a GPU it needs Triton.",
                NotCompiledWarning,
                stacklevel=2,
            )
            return False
        self.warm.add((like.dtype, like.device.type))
        return True
