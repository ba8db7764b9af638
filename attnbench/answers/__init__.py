"""Answers to usual questions about attention: is it rounding, does the batch change it."""
