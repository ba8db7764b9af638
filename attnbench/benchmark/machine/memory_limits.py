"""How much memory is available. This module does not import torch."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil


def available_bytes() -> int:
    """Bytes that this process can still allocate, limited by the machine or its control group."""
    available = int(psutil.virtual_memory().available)
    with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        available = min(available, limit - int((group / "memory.current").read_text()))
    return available
