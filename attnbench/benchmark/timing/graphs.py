"""CUDA graphs of the timed calls; a replay excludes the time spent in Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attnbench.benchmark.out_of_memory import is_out_of_memory
from attnbench.errors import RefusalError, headline

GRAPH_CALLS = 16
"""Most calls in a graph; they share the cost of launching it."""

_WARM_UP = 3  # torch requires some calls on a side stream before a capture


def capture(calls: Sequence[Callable[[], object]], device: torch.device) -> Callable[[], None]:
    """Capture calls in a CUDA graph and return a function that replays it.

    Args:
        calls: calls in the order of the graph; each has run at least once.
        device: a CUDA device.

    Raises:
        RefusalError: the calls cannot be captured, because one waits for the device or changes the
            inputs of the next.
    """
    if any(getattr(call, "appends", False) for call in calls):
        raise RefusalError(
            "each call appends to a cache, which a replayed CUDA graph cannot do; measure it with "
            "'--timing call'."
        )
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
                for call in calls:
                    call()
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise RefusalError(
            f"it cannot be captured in a CUDA graph ({headline(error)}); measure it with "
            "'--timing call'."
        ) from error
    replay: Callable[[], None] = graph.replay
    return replay
