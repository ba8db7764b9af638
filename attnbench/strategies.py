"""Hypothesis strategies of cases, for authors of invariants."""

from attnbench.cases.case_strategies import CaseStrategy, cases, changed, domain_of, listed

__all__ = ["CaseStrategy", "cases", "changed", "domain_of", "listed"]
