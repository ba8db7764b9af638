"""Built-in layers: self-attention with its caches."""
