"""The invariants on layers and their caches, by topic, and what only they share."""
