"""The heads that are wrong in what a projection is given in a call, and those that they read."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor

from attnbench.attention.torch_internals import OperationMode
from attnbench.invariants.caches.cache_parts import tensors_of
from attnbench.invariants.caches.hidden_keys import last_call_within
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.invariants.toolkit.layer_calls import listed
from attnbench.invariants.toolkit.origins import differ, memory_of
from attnbench.subject.tracing import line_of, name_of

OTHERS = "they read the values of other heads, or stand in their place"
"""What is told of heads that have what other heads have in one call."""


class _Projections(OperationMode):
    """Notes what is multiplied by matrices, with the memory of these, and the line."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.given: list[tuple[int, str, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if name_of(func) in ("mm", "addmm"):
            self.given.append((memory_of(args[-1]), line_of(func), args[-2].clone()))
        return func(*args, **(kwargs or {}))


def wrong_heads(stage: Stage, found: FoundError) -> str:
    """A sentence on the heads that are wrong in the first projection that is given others."""
    alike = copy.copy(stage)
    alike.tokens = stage.tokens[:1, :1].expand_as(stage.tokens).contiguous()
    (line, own, one), (_, same, one_same) = (_first_wrong(s, found) for s in (stage, alike))
    wrong = [h for h in range(len(own)) if differ(own[h], one[h])]
    few = f"head{'s' * (len(wrong) > 1)} {listed(wrong)} of {len(own)}"
    if not wrong or len(same) != len(own):
        return ""
    read = [[n for n, t in enumerate(one_same) if not differ(same[h], t)] for h in wrong]
    if not all(of and h not in of for h, of in zip(wrong, read, strict=True)):
        return ""  # it may be no heads that are wrong
    texts = [f"{h} has what {listed(of)} should" for h, of in zip(wrong, read, strict=True)]
    alone = few if len(wrong) < len(own) else "all heads"
    told = f"\n  what {line} is given is wrong in {alone}"
    return f"{told}; with equal tokens everywhere, head {', '.join(texts)} have: {OTHERS}"


def _first_wrong(stage: Stage, found: FoundError) -> tuple[str, list[Tensor], list[Tensor]]:
    """The line of a projection that is not given what it is in one call, and both by head."""
    mine, theirs = _Projections(), _Projections()
    replay = last_call_within(stage, "split", found, mine)
    track, count = replay.track, found.steps[-1].count
    assert track is not None
    sizes = [t.shape[-1] for _, t in tensors_of(track.cache) if t.dim() == 4]
    with theirs:
        stage.subject.call(replay.module, track.seen.clone())
    rows, total = track.seen.shape[:2]
    left = {memory: one for memory, _, one in reversed(theirs.given)}
    for memory, line, own in mine.given:
        if (one := left.pop(memory, None)) is None:
            continue
        size = own.shape[-1]
        heads = stage.subject.spec.heads or (sizes and size % sizes[0] == 0 and size // sizes[0])
        own, one = own.reshape(rows, count, size), one.reshape(rows, total, size)[:, -count:]
        if heads and size % heads == 0 and differ(own, one):
            both = [list(t.reshape(rows, count, heads, -1).unbind(2)) for t in (own, one)]
            return line, both[0], both[1]
    return "", [], []
