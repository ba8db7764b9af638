"""``attnbench new``: what it writes, and the templates of that."""
