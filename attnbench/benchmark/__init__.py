"""Benchmarks: cases, measuring, and the records of what was measured."""
