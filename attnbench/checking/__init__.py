"""Checks: runs of invariants on subjects, with their outcomes and evidence."""
