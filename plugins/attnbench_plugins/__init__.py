"""The built-in plugins: one scoring function, kernel, mechanism or layer per file."""
