"""Comparing two sides: recorded runs, or revisions measured in turn."""
