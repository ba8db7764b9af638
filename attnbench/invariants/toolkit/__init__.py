"""What invariants share: a subject's answers, derived inputs, and comparisons."""
