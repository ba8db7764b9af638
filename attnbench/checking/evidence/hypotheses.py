"""Hypotheses: what textbook attention would give if it made a known mistake.

A mistake explains a subject where everything that the subject gets wrong on some small cases is
just what attention with that mistake gives.
"""

from __future__ import annotations

from attnbench.checking.evidence import mask_mistakes, score_mistakes
from attnbench.checking.evidence.textbook_call import Call, Named

__all__ = ["mistaken"]


def mistaken(call: Call) -> Named:
    """What each mistake that a call could show would give, ``(*lead, L, Ev)``, by its name.

    Slots that no query may see are tried as they are, and as zeros, which some code makes of them
    before anything else.
    """
    seen = call.stages.allowed.any(-2).unsqueeze(-1)
    for one in (call,) if bool(seen.all()) else (call, call.silenced(seen)):
        for topic in (*mask_mistakes.TOPICS, *score_mistakes.TOPICS):
            yield from topic(one)
