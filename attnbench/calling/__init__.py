"""How the code that people have is imported, read, confined and kept from changing the suite."""

STYLES = ("sdpa", "flash", "multihead", "textbook")
"""What ``--as`` takes, each an adapter of that name."""

CALLED = "called"
"""The style of what is called as its arguments are said to be: ``called(state=query, ...)``."""
