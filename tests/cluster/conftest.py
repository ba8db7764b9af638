"""Clusters of this machine."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch")


@pytest.fixture
def scheduler() -> Iterator[Any]:
    """A scheduler with two workers under nannies, as ``dask worker`` starts them."""
    from distributed import LocalCluster

    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
    ) as cluster:
        yield cluster


def _measuring(**names: str) -> Any:
    """A cluster of workers that measure, by their name the machine that each says it is on."""
    from distributed import Nanny, Scheduler, SpecCluster

    workers = {
        worker: {
            "cls": Nanny,
            "options": {
                "nthreads": 1,
                "memory_limit": 0,
                "resources": {"machine": 1},
                "env": {"ATTNBENCH_MACHINE": machine},
            },
        }
        for worker, machine in names.items()
    }
    options = {"dashboard_address": ":0", "port": 0, "host": "127.0.0.1"}
    return SpecCluster(scheduler={"cls": Scheduler, "options": options}, workers=workers)


@pytest.fixture
def two_machines() -> Iterator[Any]:
    """A scheduler with workers of two machines, of which this one plays both."""
    with _measuring(one="north", two="south") as cluster:
        yield cluster


@pytest.fixture
def shared_machine() -> Iterator[Any]:
    """A scheduler with two workers of one machine."""
    with _measuring(one="north", two="north") as cluster:
        yield cluster


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Path]:
    """Debian's Slurm on this machine as its one node; a folder that its jobs can write to."""
    absent = [name for name in _DAEMONS if shutil.which(name, path=_path()) is None]
    if absent:
        pytest.skip(f"not installed: {', '.join(absent)} (Debian: slurmctld slurmd munge)")
    if os.getuid() != 0:
        pytest.skip("Debian's slurmd has to be started by root")
    folder = tmp_path / "slurm"
    folder.mkdir()
    processes = []
    try:
        processes.append(_munge(folder))
        conf = _conf(folder)
        os.environ["SLURM_CONF"] = str(conf)
        for daemon in ("slurmctld", "slurmd"):
            arguments = [shutil.which(daemon, path=_path()), "-D", "-f", str(conf)]
            with (folder / f"{daemon}.out").open("w") as log:
                processes.append(subprocess.Popen(arguments, stdout=log, stderr=log))
        _until_idle(folder)
        yield folder
        _until_no_job()
    finally:
        os.environ.pop("SLURM_CONF", None)
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(timeout=20)


def _path() -> str:
    return f"{os.environ['PATH']}:/usr/sbin"


def _munge(folder: Path) -> subprocess.Popen[bytes]:
    """munged with a key and a socket of its own."""
    home = folder / "munge"
    home.mkdir(mode=0o755)
    folder.chmod(0o755)
    key = home / "key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    return subprocess.Popen(
        [
            shutil.which("munged", path=_path()) or "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={home / 'socket'}",
            f"--pid-file={home / 'pid'}",
            f"--log-file={home / 'log'}",
            f"--seed-file={home / 'seed'}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _conf(folder: Path) -> Path:
    host = socket.gethostname().partition(".")[0]
    (folder / "state").mkdir()
    (folder / "spool").mkdir()
    user = getpass.getuser()
    conf = folder / "slurm.conf"
    conf.write_text(
        f"""\
ClusterName=attnbench
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={folder / "munge" / "socket"}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder / "state"}
SlurmdSpoolDir={folder / "spool"}
SlurmctldPidFile={folder / "slurmctld.pid"}
SlurmdPidFile={folder / "slurmd.pid"}
SlurmctldLogFile={folder / "slurmctld.log"}
SlurmdLogFile={folder / "slurmd.log"}
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=4096 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""
    )
    return conf


def _until_no_job(seconds: float = 60) -> None:
    """Wait for a cancelled job: its step tells slurmctld that it has ended, and slurmd waits."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        told = subprocess.run(["squeue", "-h"], capture_output=True, text=True, check=True)
        if not told.stdout.strip():
            return
        time.sleep(0.2)
    raise AssertionError(f"a job of Slurm did not end: {told.stdout}")


def _until_idle(folder: Path, seconds: float = 60) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        told = subprocess.run(
            ["sinfo", "-h", "-o", "%t"], capture_output=True, text=True, check=False
        )
        if told.stdout.strip() in ("idle", "mix"):
            return
        time.sleep(0.5)
    logs = "\n".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
    raise AssertionError(f"Slurm's node did not become idle: {told.stdout} {told.stderr}\n{logs}")
