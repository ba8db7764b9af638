"""Built-in mechanisms, one per file."""
