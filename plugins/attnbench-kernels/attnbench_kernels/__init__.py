"""Exact, compiled kernels for attention whose scores are sums over pairs, as a plugin."""
