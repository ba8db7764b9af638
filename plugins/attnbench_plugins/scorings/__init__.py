"""Built-in scoring functions, one a file."""
