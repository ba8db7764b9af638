"""``attnbench check --watch``: the command again whenever a file of its targets changes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from attnbench.cli.printing.tables import print_line
from attnbench.errors import UsageError
from attnbench.registry.address import parse_address

_LOOK_S = 0.3


def watch(targets: Sequence[str]) -> int:
    """Run this process's command without ``--watch``, now and after each change, until Ctrl-C.

    Raises:
        UsageError: no target is a file.
    """
    addresses = [parse_address(target) for target in targets]
    files = [Path(one.source) for one in addresses if one.is_file and one.source]
    if not files:
        raise UsageError("--watch needs a target that is a file, such as mine.py:SPEC.")
    rest = [word for word in sys.argv[1:] if word != "--watch"]
    while True:
        seen = _state(files)
        subprocess.run([sys.executable, "-m", "attnbench", *rest])  # noqa: S603  # as we were run
        print_line(f"Watching {', '.join(map(str, files))}; Ctrl-C ends.")
        while _state(files) == seen:
            time.sleep(_LOOK_S)


def _state(files: Sequence[Path]) -> list[tuple[int, int] | None]:
    """What changes with a file; an editor may have removed it for a moment."""
    found = [file.stat() if file.exists() else None for file in files]
    return [one and (one.st_mtime_ns, one.st_size) for one in found]
