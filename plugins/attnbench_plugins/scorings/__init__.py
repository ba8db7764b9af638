"""Built-in scoring functions, one per file."""
