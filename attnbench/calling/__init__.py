"""How the code that people have is imported, made and called."""

STYLES = {
    "sdpa": "attnbench.calling.presets",
    "flash": "attnbench.calling.presets",
    "multihead": "attnbench.calling.presets",
    "textbook": "attnbench.calling.adaptation",
}
"""What ``--as`` takes, and the module that has the adapter of that name."""

CALLED = "called"
"""The style of what is called as its arguments are said to be: ``called(state=query, ...)``."""
