"""Subjects: what is checked and benchmarked, their inputs, and how they are looked up."""
