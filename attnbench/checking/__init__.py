"""Checks: running invariants on subjects, and the outcomes and evidence that they give."""
