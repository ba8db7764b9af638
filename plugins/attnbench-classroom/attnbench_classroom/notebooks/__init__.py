"""Notebooks as scripts: cells begin with ``# %%``; a question is a heading before its cell."""
