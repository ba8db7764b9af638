"""A plugin whose hook raises."""


def attnbench_scorings():
    raise RuntimeError("the weights file is missing")
