"""Styles of call: adapters that make specs of functions, modules and classes."""

STYLES = {
    "sdpa": "attnbench.calling.functions:sdpa",
    "flash": "attnbench.calling.functions:flash",
    "multihead": "attnbench.calling.multihead:multihead",
    "textbook": "attnbench.calling.textbooks:textbook",
}
"""What ``--as`` takes, and the adapter of each: a module of this package and its function."""
