"""Styles of call: adapters that make specs of functions, modules and classes."""

STYLES = {
    "sdpa": "sdpa_and_flash:sdpa",
    "flash": "sdpa_and_flash:flash",
    "multihead": "multihead:multihead",
    "textbook": "textbook_adapter:textbook",
}
"""What ``--as`` takes, and the adapter of each: a module of this package and its function."""
