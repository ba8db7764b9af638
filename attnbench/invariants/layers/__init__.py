"""Invariants on layers and their caches, by topic, and their common code."""
