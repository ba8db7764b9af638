"""The setting of a run: the fields of a record that are not measurements.

This module does not import torch.
"""

from __future__ import annotations

import functools
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.contract import Contract
from attnbench.errors import UsageError
from attnbench.processes.git import git
from attnbench.registry.versions import installed_version


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The fields that all records of a run share."""

    run: str = ""
    commit: str = ""
    command: str = ""
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)


def here(run: str = "", *, command: str = "") -> Setting:
    """The setting of this process and its working directory."""
    return Setting(
        run=run, commit=_commit(), command=command, machine=_machine(), versions=_versions()
    )


def fields_of(
    case: BenchCase, contract: Contract, setting: Setting, *, subject: str, kind: str
) -> dict[str, Any]:
    """The fields of a record that are known before the measurement."""
    point = case.case
    return {
        "run": setting.run,
        "created": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "contract": contract.name(case.direction, point.device),
        "subject": subject,
        "kind": kind,
        "case": case.id,
        "workload": case.workload,
        "direction": case.direction,
        **{name: getattr(point, name) for name in _CASE_FIELDS},
        "kv_heads": case.kv_heads,
        "cache": contract.cache,
        "timing": contract.timing_on(point.device),
        "threads": contract.threads,
        "inputs": None if case.path is None else {"path": case.path, "sha256": case.sha256},
        "machine": dict(setting.machine),
        "versions": dict(setting.versions),
        "commit": setting.commit,
        "command": setting.command,
    }


_CASE_FIELDS = (
    "lead",
    "q_len",
    "kv_len",
    "query_size",
    "key_size",
    "value_size",
    "dtype",
    "device",
    "mask",
    "seed",
)


@functools.cache
def processor_name() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _machine() -> dict[str, Any]:
    return {
        "node": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processor": processor_name(),
        "cores": os.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in ("torch", "attnbench"):
        versions[name] = installed_version(name) or "unknown"
    return versions


def _commit() -> str:
    """The commit of the working directory, with ``+dirty`` if files differ; ``""`` without git."""
    try:
        commit = git(Path.cwd(), "rev-parse", "HEAD")
        return commit + "+dirty" * bool(git(Path.cwd(), "status", "--porcelain", "-uno"))
    except UsageError:
        return ""
