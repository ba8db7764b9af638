"""``python -m attnbench_peers``: the libraries, and whether they are installed."""

from attnbench_peers.library import LIBRARIES

for library in LIBRARIES.values():
    print(f"{library.name:20} {library.state}")
