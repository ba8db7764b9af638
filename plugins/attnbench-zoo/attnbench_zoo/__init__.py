"""The zoo: attentions with one known mistake each, and right ones, to measure what finds bugs.

``score(oracle)`` gives each of them to an oracle and counts which mistakes it finds and which right
ones it accuses; ``entries()`` lists them as data; ``python -m attnbench_zoo.harnesses`` scores
public ways to test attention.
"""

from attnbench_zoo.entries import Built, Entry, blind_entries, entries
from attnbench_zoo.scoring import Score, Verdict, score

__all__ = ["Built", "Entry", "Score", "Verdict", "blind_entries", "entries", "score"]
