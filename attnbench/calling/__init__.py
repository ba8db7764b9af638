"""How the code that people have is imported, made and called."""

STYLES = {
    "sdpa": "attnbench.calling.functions",
    "flash": "attnbench.calling.functions",
    "multihead": "attnbench.calling.multihead",
    "textbook": "attnbench.calling.textbooks",
}
"""What ``--as`` takes, and the module that has the adapter of that name."""
