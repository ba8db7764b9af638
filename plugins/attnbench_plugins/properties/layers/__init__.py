"""Invariants on layers, by topic."""
