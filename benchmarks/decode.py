"""Prefill and decode of the built-in layers: tokens a second, and bytes of cache a token.

    python benchmarks/decode.py [LAYER ...] [--lengths 256,1024,4096] [--batches 1,8] [--again]

``prefill`` is one call on a whole prompt with a new cache, ``decode`` one call on a single token
after it. Calls of both take turns for half a second or more, and each number is a median. With
``--again`` a decoder's step is also taken in turn with one call on the whole sequence without a
cache, which is what a step costs where nothing is kept; ``gain`` is the ratio of medians.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from typing import Any

SIZE = 64
LAYERS = ("causal_attention", "causal_attention(scoring=additive)", "rotary_attention")
LEAST_S, LEAST_CALLS = 0.5, 3


def in_turn(*calls: Callable[[], object]) -> list[float]:
    """Median seconds of each call, taken one after the other, round by round."""
    rounds: list[list[float]] = [[] for _ in calls]
    start = time.perf_counter()
    while len(rounds[0]) < LEAST_CALLS or time.perf_counter() - start < LEAST_S * len(calls):
        for call, seconds in zip(calls, rounds, strict=True):
            before = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - before)
    return [statistics.median(seconds) for seconds in rounds]


def measured(address: Any, length: int, batch: int, again: bool) -> list[str]:
    """One row of the table, of an address or a spec."""
    import torch

    from attnbench.subject.lookup import resolve

    (subject,) = resolve(address)
    torch.manual_seed(0)
    module: Any = subject.make(SIZE).eval()
    caches = subject.spec.cache
    if caches is None:
        raise SystemExit(f"{subject.name} has no cache")
    if caches.capacity is not None and caches.capacity <= length:
        raise SystemExit(
            f"{subject.name} holds {caches.capacity} tokens, fewer than {length} and one"
        )
    prompt, step = torch.randn(batch, length, SIZE), torch.randn(batch, 1, SIZE)
    cache = caches.new(module, batch)
    module(prompt, cache=cache)
    whole = torch.cat([prompt, step], 1)
    torch.testing.assert_close(
        module(step, cache=copy.deepcopy(cache)), module(whole)[:, -1:], rtol=1e-3, atol=1e-4
    )

    def decode() -> None:
        module(
            step, cache=copy.copy(cache)
        )  # a step replaces its tensors, or writes one slot again

    def prefill() -> None:
        module(prompt, cache=caches.new(module, batch))

    prefill_s, decode_s = in_turn(prefill, decode)
    held = getattr(cache, "nbytes", None)
    row = [
        subject.name,
        str(batch),
        str(length),
        f"{batch * length / prefill_s:,.0f}",
        f"{batch / decode_s:,.0f}",
        "" if held is None else f"{held / (batch * length):,.0f}",
    ]
    if again:
        step_s, again_s = in_turn(decode, lambda: module(whole))
        row.append(f"{again_s / step_s:,.0f}")
    return row


def main() -> None:
    """The command."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("layers", nargs="*", default=LAYERS)
    parser.add_argument("--lengths", default="256,1024,4096")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--again", action="store_true", help="measure whole calls beside steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    head = ["layer", "batch", "length", "prefill tokens/s", "decode tokens/s", "cache bytes/token"]
    print(" | ".join(head + ["gain"] * options.again))
    with torch.inference_mode():
        for address in options.layers:
            for batch in map(int, options.batches.split(",")):
                for length in map(int, options.lengths.split(",")):
                    print(" | ".join(measured(address, length, batch, options.again)), flush=True)


if __name__ == "__main__":
    main()
