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
    """A captured slot of one call, whose inputs get other values where they are before each slot.

    The output of one of the calls, drawn at random, is kept; every replay writes it anew.

    Args:
        call: what is captured.
        count: how often.
        device: a CUDA device.

    Raises:
        RefusalError: the call cannot be captured.
    """

    def __init__(self, call: Callable[[], Any], count: int, device: torch.device):
        if getattr(call, "appends", False):
            raise RefusalError(
                "each call appends to a cache, which a replayed CUDA graph cannot do; measure it "
                "with '--timing call'."
            )
        self.size = count
        self._fresh = call if isinstance(call, FreshCall) else None
        self._kept = random.SystemRandom().randrange(count)
        calls = [call] * count
        if isinstance(call, FreshCall):
            call.prepare(count)
            calls = [functools.partial(call.on, number) for number in range(count)]
        self.replay, self._output = capture(calls, self._kept, device)

    def refresh(self) -> None:
        """Give the inputs other values, where the graph reads them."""
        if self._fresh is not None:
            self._fresh.refresh()

    @property
    def output(self) -> tuple[torch.Tensor, ...]:
        """A copy of the output that the latest replay wrote."""
        return copies_of(self._output)

    @property
    def fault(self) -> str:
        """What is wrong with the form of that output, in words; empty if nothing is."""
        return fault_of(self._output, self.inputs()[0]) if self._fresh else ""

    def inputs(self) -> tuple[Sequence[torch.Tensor], Any]:
        """The tensors of the call that gave the output, and a copy of its argument."""
        assert self._fresh is not None, "the timed calls have no inputs"
        return self._fresh.inputs_of(self._kept)


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
