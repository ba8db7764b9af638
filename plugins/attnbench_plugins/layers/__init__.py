"""Built-in layers: self-attention with its caches, a file each."""
