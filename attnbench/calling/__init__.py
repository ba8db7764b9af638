"""How the code that people have is imported and read; plugins say how it is made and called."""

STYLES = ("sdpa", "flash", "multihead", "textbook")
"""What ``--as`` takes, each an adapter of that name."""

CALLED = "called"
"""The style of what is called as its arguments are said to be: ``called(state=query, ...)``."""
