"""A plugin with a mistyped hook."""


def attnbench_scoring():
    return []
