"""The command ``attnbench diff``; its answers are tested beside ``answers/``."""

from types import SimpleNamespace
from typing import Any

from attnbench.cli import diff
from attnbench.processes.pool import GIB, Task


def test_its_process_is_ended_before_the_system_runs_out_of_memory(monkeypatch: Any) -> None:
    tasks: list[Task] = []

    def call(task: Task) -> list[Any]:
        tasks.append(task)
        return []

    monkeypatch.setattr("attnbench.cli.diff.call", call)
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=8 * GIB))
    diff._rows(targets=())
    assert tasks[-1].memory_gib <= 7
