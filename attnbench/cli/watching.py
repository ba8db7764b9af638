"""``attnbench check --watch``: repeat the command whenever a file of its targets changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attnbench.cli.printing.tables import print_line
from attnbench.errors import UsageError
from attnbench.registry.address import parse_address

_POLL_S = 0.3


def watch(targets: Sequence[str]) -> int:
    """Run this process's command without ``--watch``, now and after each change, until Ctrl-C.

    Raises:
        UsageError: no target is a file.
    """
    addresses = [parse_address(target) for target in targets]
    files = [Path(address.source) for address in addresses if address.is_file and address.source]
    if not files:
        raise UsageError("--watch needs a target that is a file, such as mine.py:SPEC.")
    arguments = [word for word in sys.argv[1:] if word != "--watch"]
    while True:
        state = _state(files)
        subprocess.run([sys.executable, "-m", "attnbench", *arguments])  # noqa: S603  # the same interpreter
        print_line(f"Watching {', '.join(map(str, files))}; Ctrl-C ends.")
        while _state(files) == state:
            time.sleep(_POLL_S)


def _state(files: Sequence[Path]) -> list[tuple[int, int] | None]:
    """Time and size of each file; ``None`` while an editor has removed it for a moment."""
    stats = [file.stat() if file.exists() else None for file in files]
    return [stat and (stat.st_mtime_ns, stat.st_size) for stat in stats]
