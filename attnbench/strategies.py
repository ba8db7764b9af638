"""Hypothesis strategies of cases, for authors of invariants."""

from attnbench.cases.case_strategies import CaseStrategy, cases, changed, listed

__all__ = ["CaseStrategy", "cases", "changed", "listed"]
