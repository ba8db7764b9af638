"""Inner loops compiled by torch, and what happens where they cannot be.

:class:`Loops` is a function of packed tensors, compiled once for all sizes from 2 up: it is first
run on tensors of sizes chosen here, so that the graph never depends on which call came first.
Where compiling fails, as without a C++ compiler, the same function runs eagerly in blocks, and a
warning says so once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

__all__ = ["Loops", "NotCompiledWarning", "last_path"]

_OPTIONS: dict[str, Any] = {
    # multiply and add in one instruction
    "cpp.enable_floating_point_contract_flag": "fast",
    # a sum's terms stay inside its loop however long they are: stored, they are L·S·h numbers
    "realize_opcount_threshold": 10_000,
    "realize_reads_threshold": 10_000,
    "realize_acc_reads_threshold": 10_000,
}
_EAGER_ELEMENTS = 2**20
"""Elements that a temporary tensor of the eager version may have."""


class NotCompiledWarning(UserWarning):
    """A kernel runs eagerly, many times slower, because its loops could not be compiled."""


class _Status:
    path: str | None = None
    broken = False


def last_path() -> str | None:
    """How the latest loops ran: ``"compiled"`` or ``"eager"``; ``None`` before the first."""
    return _Status.path


@contextmanager
def _same_modes() -> Iterator[None]:
    """Graphs are guarded on these modes; held fixed, each function keeps to one graph."""
    with torch.inference_mode(False), torch.no_grad():
        yield


class Loops:
    """A function of packed tensors, compiled on first use.

    Args:
        function: takes ``tiled`` tensors ``(items, tiles, ...)``, one more ``(items, ...)``, and
            others ``(items, ...)``; gives one or more tensors ``(items, rows, ...)``. Each of the
            symbolic sizes is at least 2.
        tiled: how many of its arguments are cut in tiles.
        example: arguments to compile with, given ``dtype``, ``device`` and the number of items.
    """

    def __init__(
        self,
        function: Callable[..., tuple[Tensor, ...]],
        tiled: int,
        example: Callable[[torch.dtype, torch.device, int], tuple[Tensor, ...]],
    ) -> None:
        self.function = function
        self.tiled = tiled
        self.example = example
        self.compiled: Callable[..., tuple[Tensor, ...]] | None = None
        self.warm: set[tuple[torch.dtype, str, int]] = set()

    def __call__(self, *args: Tensor) -> tuple[Tensor, ...]:
        """The function's result, from the compiled graph if there can be one."""
        with _same_modes():
            # whether a tensor needs a gradient, or is of inference mode, is guarded on, too
            args = tuple(t.clone() if t.is_inference() else t.detach() for t in args)
            if not _Status.broken and self._ready(args[0]):
                assert self.compiled is not None
                _Status.path = "compiled"
                return self.compiled(*args)
            _Status.path = "eager"
            return self._in_blocks(args)

    def _ready(self, like: Tensor) -> bool:
        """Compile for this dtype and device unless that was done; ``False`` if it fails."""
        threads = torch.get_num_threads()
        if (like.dtype, like.device.type, threads) in self.warm:
            return True
        # fewer items than would occupy all threads alone: so the tiles are shared out, too
        items = max(3, 2 * threads - 1)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # torch's own, from modules imported only now
                if self.compiled is None:
                    self.compiled = torch.compile(self.function, dynamic=True, options=_OPTIONS)
                self.compiled(*self.example(like.dtype, like.device, items))
        except Exception as error:  # whatever a compiler may raise, the eager version works
            _Status.broken = True
            warnings.warn(
                f"attnbench's kernels run eagerly, many times slower: their loops could not be "
                f"compiled ({type(error).__name__}: {str(error).strip().splitlines()[0]}). "
                "torch.compile needs a C++ compiler on the CPU, and Triton on a GPU.",
                NotCompiledWarning,
                stacklevel=2,
            )
            return False
        self.warm.add((like.dtype, like.device.type, threads))
        return True

    def _in_blocks(self, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Run eagerly on as many items and tiles at a time as keep temporary tensors small."""
        tiled, rest = args[: self.tiled], args[self.tiled :]
        items, tiles = tiled[0].shape[:2]
        per_tile = max(1, rest[0][0].numel())
        height = max(1, min(tiles, _EAGER_ELEMENTS // per_tile))
        width = max(1, min(items, _EAGER_ELEMENTS // (per_tile * tiles)))
        found = []
        for n in range(0, items, width):
            block = slice(n, n + width)
            given = [t[block] for t in rest]
            parts = [
                self.function(*(t[block, i : i + height] for t in tiled), *given)
                for i in range(0, tiles, height)
            ]
            found.append([torch.cat(p, 1) for p in zip(*parts, strict=True)])
        return tuple(torch.cat(p, 0) for p in zip(*found, strict=True))
