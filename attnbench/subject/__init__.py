"""Subjects that are checked and benchmarked, their inputs, and their lookup."""
