"""What is slow the first time only, done once for all children: 0.4 s in each of them.

At its first example Hypothesis looks for constants in every module that there is, and through all
of memory for generators of random numbers; whoever asks where an operator is declared, as torch
does, looks up the file of every module. The process that children are forked from imports this.
What is there by then stays, so that no child's garbage collector need look through it.
"""

from __future__ import annotations

import gc
import inspect

from hypothesis import Phase
from hypothesis.strategies import just

from attnbench.cases.case import Case
from attnbench.checking.search import search

__all__: list[str] = []

search(just(Case()), lambda case: False, phases=(Phase.generate,), examples=1)
inspect.getmodule(search.__code__)
gc.collect()
gc.freeze()
