"""Hypothesis strategies of cases, for authors of invariants."""

from attnbench.cases.spaces import Drawn, cases, changed, domain_of, drawn_of, listed, listed_of

__all__ = ["Drawn", "cases", "changed", "domain_of", "drawn_of", "listed", "listed_of"]
