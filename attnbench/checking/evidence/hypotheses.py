"""Hypotheses: the outputs of textbook attention with known mistakes.

A mistake explains a subject if, on some small cases, the subject's wrong outputs equal those of
attention with that mistake.
"""

from __future__ import annotations

from attnbench.checking.evidence import mask_mistakes, score_mistakes
from attnbench.checking.evidence.textbook_call import Call, Named

__all__ = ["mistaken"]


def mistaken(call: Call) -> Named:
    """Yield the name and output ``(*lead, L, Ev)`` of each mistake that a call could show.

    Slots that no query may see are tried both unchanged and as zeros, as some code replaces them
    first.
    """
    seen = call.stages.allowed.any(-2).unsqueeze(-1)
    for one in (call,) if bool(seen.all()) else (call, call.silenced(seen)):
        for topic in (*mask_mistakes.TOPICS, *score_mistakes.TOPICS):
            yield from topic(one)
