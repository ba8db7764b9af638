"""Styles of call: adapters that make specs of functions, modules and classes."""

STYLE_NAMES = (
    "sdpa",
    "flash",
    "flex",
    "interface",
    "keras",
    "multihead",
    "paged",
    "textbook",
    "varlen",
)
"""What ``--as`` takes; :mod:`~attnbench.subject.styles.table` has the adapters."""
