"""Is it a bug, or rounding? Assertions and commands that compare two answers."""
