"""The expected output, by two references, and the error budget."""
