"""The asv suite of attnbench itself."""
