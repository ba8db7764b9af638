"""Attention of other libraries as subjects of attnbench.

One module a library; each gives its subjects where the library is installed, and none where it is
not. ``python -m attnbench_peers`` lists the libraries.
"""
