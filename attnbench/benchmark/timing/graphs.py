"""CUDA graphs of the timed calls; a replay excludes the time spent in Python."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import torch

from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.errors import RefusalError, headline

GRAPH_CALLS = 16
"""Most calls in a graph; they share the cost of launching it."""

_WARM_UP = 3  # torch requires some calls on a side stream before a capture


class Graph(FreshCall):
    """A captured slot of one call, whose inputs get other values where they are before each replay.

    The output of one of the calls, drawn at random, is kept; every replay writes it anew.

    Args:
        call: what is captured.
        count: how often.
        device: a CUDA device.

    Raises:
        RefusalError: the call cannot be captured.
    """

    rewrites = True

    def __init__(self, call: FreshCall, count: int, device: torch.device):
        if call.appends:
            raise RefusalError(
                "each call appends to a cache, which a replayed CUDA graph cannot do; measure it "
                "with '--timing call'."
            )
        self.size, self.repeat, self.tensors = count, call.repeat, call.tensors
        self._captured, self._kept = call, random.SystemRandom().randrange(count)
        call.prepare(count)
        calls = [functools.partial(call.on, number) for number in range(count)]
        self._replay, self._output = capture(calls, self._kept, device)

    def prepare(self, calls: int) -> None:
        """Give the inputs other values, where the graph reads them."""
        self._captured.refresh()

    def __call__(self) -> Any:
        """Replay the graph; returns the output of the kept call."""
        self._replay()
        return self._output

    def inputs_of(self, number: int) -> tuple[Sequence[torch.Tensor], Any]:
        """The tensors of the kept call, and a copy of its argument."""
        return self._captured.inputs_of(self._kept)

    def move(self) -> None:
        """Do nothing: a graph reads its inputs where they were captured."""


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
