"""What Hypothesis does at its first example, done once for all children: 0.3 s in each of them.

It looks for constants in every module that there is, and through all of memory for generators of
random numbers. The process that children are forked from imports this module.
"""

from __future__ import annotations

from hypothesis.strategies import just

from attnbench.cases import Case
from attnbench.drawing import drawn_cases

__all__: list[str] = []

next(drawn_cases(just(Case()), "warm-up", None, 1))
