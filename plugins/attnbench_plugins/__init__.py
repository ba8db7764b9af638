"""The built-in plugins: one scoring function, kernel or mechanism a file."""
