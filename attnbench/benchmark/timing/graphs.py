"""CUDA graphs of the timed calls; a replay excludes the time spent in Python."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.benchmark.timing.samples import copies_of, fault_of
from attnbench.errors import RefusalError, headline

GRAPH_CALLS = 16
"""Most calls in a graph; they share the cost of launching it."""

_WARM_UP = 3  # torch requires some calls on a side stream before a capture


class Graph:
    """Captured calls, whose inputs get other values where they are before each slot.

    The output of one of them, drawn at random, is kept; every replay writes it anew.

    Args:
        calls: what is captured, in this order.
        count: how often, if it is a single call.
        device: a CUDA device.

    Raises:
        RefusalError: the calls cannot be captured.
    """

    def __init__(self, calls: Sequence[Callable[[], Any]], count: int, device: torch.device):
        if any(getattr(call, "appends", False) for call in calls):
            raise RefusalError(
                "each call appends to a cache, which a replayed CUDA graph cannot do; measure it "
                "with '--timing call'."
            )
        self._fresh = [call for call in calls if isinstance(call, FreshCall)]
        self._count = count if len(calls) == 1 else 1
        for call in self._fresh:
            call.prepare(self._count)
        turns = [(call, number) for call in calls for number in range(self._count)]
        kept = random.SystemRandom().randrange(len(turns))
        self.size = len(turns)
        self.replay, self._output = capture([_bound(*turn) for turn in turns], kept, device)
        source, self._number = turns[kept]
        self._kept = source if isinstance(source, FreshCall) else None

    def refresh(self, replays: int = 0) -> None:
        """Give the inputs other values, where the graph reads them."""
        for call in self._fresh:
            call.refresh()

    @property
    def output(self) -> tuple[torch.Tensor, ...]:
        """A copy of the output that the latest replay wrote."""
        return copies_of(self._output)

    @property
    def fault(self) -> str:
        """What is wrong with the form of that output, in words; empty if nothing is."""
        return fault_of(self._output, self.inputs()[0]) if self._kept else ""

    def inputs(self) -> tuple[Sequence[torch.Tensor], Any]:
        """The tensors of the call that gave the output, and a copy of its argument."""
        assert self._kept is not None, "the timed calls have no inputs"
        return self._kept.inputs_of(self._number)


def _bound(call: Callable[[], Any], number: int) -> Callable[[], Any]:
    return functools.partial(call.on, number) if isinstance(call, FreshCall) else call


def capture(
    calls: Sequence[Callable[[], Any]], kept: int, device: torch.device
) -> tuple[Callable[[], None], Any]:
    """Capture calls in a CUDA graph; returns a function that replays it, and the kept output.

    Raises:
        RefusalError: the calls cannot be captured, because one waits for the device or changes the
            inputs of the next.
    """
    kept_output = None
    try:
        with torch.cuda.device(device):
            stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # no types there
            stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                for call in (*[calls[0]] * _WARM_UP, *calls[1:]):
                    call()
            torch.cuda.current_stream(device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for number, call in enumerate(calls):
                    output = call()
                    kept_output = output if number == kept else kept_output
                    del output  # or each call would find one more buffer taken
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise RefusalError(
            f"it cannot be captured in a CUDA graph ({headline(error)}); measure it with "
            "'--timing call'."
        ) from error
    return graph.replay, kept_output
