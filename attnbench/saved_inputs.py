"""Saved inputs: a user's own query, key, value and mask, after projection and head split."""

from attnbench.subject.input_files import digest, load_inputs, save_inputs

__all__ = ["digest", "load_inputs", "save_inputs"]
