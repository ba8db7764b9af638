"""Common parts of invariants: a subject's answers, derived inputs, and comparisons."""
