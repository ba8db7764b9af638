"""The invariants on calls: how they are made, and what they leave behind."""
