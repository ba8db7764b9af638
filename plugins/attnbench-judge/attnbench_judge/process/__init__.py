"""A candidate's process: how it starts, what holds it, and how it is asked."""
