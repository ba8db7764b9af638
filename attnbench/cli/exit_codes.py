"""Exit codes: the first that applies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

OK = 0
VIOLATED = 1
"""An invariant is violated, or a benchmark regressed."""
USAGE = 2
"""Wrong usage: the command raised an :class:`~attnbench.errors.AttnbenchError`."""
FAILED_PLUGIN = 3
"""A plugin failed to load, crashed or timed out."""
INCONCLUSIVE = 4
INTERRUPTED = 130

_CODES = {
    "crashed": FAILED_PLUGIN,
    "timeout": FAILED_PLUGIN,
    "error": FAILED_PLUGIN,
    "failed": VIOLATED,
    "slower": VIOLATED,
    "inconclusive": INCONCLUSIVE,
    "ambiguous": INCONCLUSIVE,
}


def exit_code(statuses: Iterable[str], plugins: Iterable[Mapping[str, Any]] = ()) -> int:
    """Choose the exit code of a command, from statuses and the rows of the plugins it loaded."""
    codes = {_CODES.get(status, OK) for status in statuses}
    if FAILED_PLUGIN in codes or any(plugin["status"] == "failed" for plugin in plugins):
        return FAILED_PLUGIN
    return next((code for code in (VIOLATED, INCONCLUSIVE) if code in codes), OK)
