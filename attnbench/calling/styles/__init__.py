"""Styles of call: adapters that make specs of functions, modules and classes."""

STYLES = {
    "sdpa": "sdpa_and_flash:sdpa",
    "flash": "sdpa_and_flash:flash",
    "interface": "interface:interface",
    "multihead": "multihead:multihead",
    "paged": "varlen_and_paged:paged",
    "textbook": "textbook_adapter:textbook",
    "varlen": "varlen_and_paged:varlen",
}
"""What ``--as`` takes, and the adapter of each: a module of this package and its function."""
