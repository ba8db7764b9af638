"""CUDA graphs of the calls that are timed: replayed, they take no time of Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from attnbench.benchmark.measuring.memory import is_out_of_memory
from attnbench.errors import RefusalError

__all__ = ["CAPTURED", "captured"]

CAPTURED = 16
"""Most calls in a graph: what it costs to start one is shared by so many."""

_WARM_UP = 3  # torch asks for some calls on another stream before a capture


def captured(calls: Sequence[Callable[[], object]], device: torch.device) -> Callable[[], None]:
    """A function that makes calls by replaying their graph; the calls have been made before.

    Args:
        calls: in the order in which the graph makes them.
        device: a CUDA device.

    Raises:
        RefusalError: they cannot be captured, because one waits for the device or changes what
            the next one meets.
    """
    if any(hasattr(call, "prepare") for call in calls):
        raise RefusalError(
            "each call adds to a cache, which a replayed CUDA graph does not; '--timing call' "
            "measures it."
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
        first = (str(error).splitlines() or [""])[0]
        raise RefusalError(
            f"it cannot be captured in a CUDA graph ({type(error).__name__}: {first}); '--timing "
            "call' measures it."
        ) from error
    replay: Callable[[], None] = graph.replay
    return replay
