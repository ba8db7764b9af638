"""Built-in kernels, one per file."""
