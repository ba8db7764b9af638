"""Built-in mechanisms, one a file."""
