"""Hypothesis strategies of cases, for authors of invariants."""

from attnbench.cases.case_strategies import cases, changed, domain_of, listed

__all__ = ["cases", "changed", "domain_of", "listed"]
