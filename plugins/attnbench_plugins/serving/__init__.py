"""Invariants on what kernels for serving take: options, packed and paged keys, trees, parts."""
