"""A piece of work for a child process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MEMORY_GIB = 2.0


@dataclass(frozen=True)
class Task:
    """A piece of work for a child process.

    Args:
        name: name for messages.
        function: address of a function, ``package.module:function``. It is called with the
            arguments, and returns one value or yields several; values must be plain data, since
            they are pickled.
        arguments: keyword arguments, plain data.
        timeout_s: most seconds to the first value, and from one value to the next.
        memory_gib: most resident memory of the process, in GiB.
        threads: torch's threads within an operator.
        fork: fork the process from this one, which has torch and no further threads, and not from
            a server.
        folder: folder in which it runs, if that exists; by default this one.
        variables: variables of the environment that begin with ``ATTNBENCH_``; by default those of
            this process.
    """

    name: str
    function: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = 300.0
    memory_gib: float = MEMORY_GIB
    threads: int = 1
    fork: bool = False
    folder: str = ""
    variables: Mapping[str, str] | None = None
