"""Laws of the built-in mechanisms."""
