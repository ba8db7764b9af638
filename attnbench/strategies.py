"""Hypothesis strategies of cases, for authors of invariants."""

from attnbench.cases.spaces import cases, changed, domain_of, listed

__all__ = ["cases", "changed", "domain_of", "listed"]
