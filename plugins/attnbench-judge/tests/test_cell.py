"""The cell: what the system's restrictions refuse, with privileges and without."""

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from attnbench_judge.process import cell

pytestmark = pytest.mark.slow


PYTHON = "/usr/bin/python3"
"""An interpreter that other users can read, too."""

PROBE = """
import ctypes, json, mmap, os, resource, shutil, socket, subprocess, sys
sys.path.append(os.path.dirname(__file__))
import cell
def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
def capable():
    with open("/proc/self/status") as lines:
        return {line.split()[0]: int(line.split()[1], 16) for line in lines if line[:3] == "Cap"}
def runs(program):
    shutil.copy("/bin/true", program)
    os.chmod(program, 0o111)
    subprocess.run([program], check=True)
def timer():
    if ctypes.CDLL(None, use_errno=True).timerfd_create(1, 0) < 0:
        raise OSError
def segment():
    if ctypes.CDLL(None, use_errno=True).shmget(0, 4096, 0o1600) < 0:
        raise OSError
def probe():
    found = {
    "other folder": refused(lambda: open("/tmp/attnbench-was-here", "w")),
    "network": refused(lambda: socket.socket(socket.AF_INET)),
    "servers that have a file": refused(lambda: socket.socket(socket.AF_UNIX)),
    "datagrams to a file": refused(lambda: socket.socketpair(type=socket.SOCK_DGRAM)),
    "cores": refused(lambda: os.sched_setaffinity(0, range(os.cpu_count()))),
    "parent": refused(lambda: os.kill(os.getppid() or 1 << 20, 0)),
    "priority": refused(lambda: os.setpriority(os.PRIO_PROCESS, 0, 19)),
    "limits": refused(lambda: resource.prlimit(1, resource.RLIMIT_CORE)),
    "own limits": not refused(lambda: resource.getrlimit(resource.RLIMIT_CORE)),
    "scheduling": refused(lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))),
    "scratch": refused(lambda: open("mine", "w").write("x")),
    "capabilities": not any(capable().values()),
    "modes": refused(lambda: os.chmod(__file__, 0o600)),
    "programs of its own": refused(lambda: runs("mine")) and refused(lambda: runs("/dev/shm/mine")),
    "timers": refused(timer),
    "programs in memory": refused(lambda: os.memfd_create("mine")),
    "memory that nobody holds": refused(segment),
    "programs": refused(lambda: subprocess.run(["/bin/true"], check=True)),
    "memory": refused(lambda: mmap.mmap(-1, 1 << 26)),
    "too much memory": refused(lambda: mmap.mmap(-1, 1 << 31)),
    }
    os.write(int(sys.argv[2]), json.dumps(found).encode())
mapped = mmap.mmap(-1, 1 << 32)  # as much as torch for CUDA maps
cell.enter(json.loads(sys.argv[1]), int(sys.argv[3]), probe)
"""

HOLDS = {
    "no network, no tracing, no other core (seccomp)": (
        *("network", "servers that have a file", "datagrams to a file", "cores", "priority"),
        *("scheduling", "limits", "programs in memory", "memory that nobody holds", "timers"),
    ),
    "no writing, connecting or signalling outside (Landlock)": (
        *("other folder", "parent", "programs of its own"),
    ),
    "no capabilities": ("capabilities",),
    "nothing to write to (read-only mounts)": ("modes",),
}
"""What each restriction refuses."""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="attnbench-cell-"))
    made.chmod(0o777)
    shutil.copy(cell.__file__, made / "cell.py")
    (made / "probe.py").write_text(PROBE)
    yield made
    shutil.rmtree(made)


@pytest.mark.skipif(not Path(PYTHON).exists(), reason=f"there is no {PYTHON}")
@pytest.mark.parametrize("user", [None, 65534])
def test_cell_refuses_what_it_says(folder: Path, user: int | None) -> None:
    if user is not None and os.getuid() != 0:
        pytest.skip("only root can become another user")
    scratch = folder / "scratch"
    scratch.mkdir()
    scratch.chmod(0o777)
    reading, writing = os.pipe()
    reports, told = os.pipe()
    given = {
        "core": max(os.sched_getaffinity(0)),
        "scratch": str(scratch),
        "scratch_bytes": 1 << 20,
        "file_size": 1 << 20,
        "memory": 1 << 30,
    }
    command = [PYTHON, "-I", str(folder / "probe.py"), json.dumps(given), str(writing), str(told)]
    subprocess.run(command, pass_fds=(writing, told), check=True, user=user)
    os.close(writing)
    os.close(told)
    with os.fdopen(reports) as lines:
        report = {key: value for line in lines for key, value in json.loads(line).items()}
    with os.fdopen(reading) as answer:
        found = json.loads(answer.read())
    os.waitpid(report["pid"], 0)
    for restriction, refused in HOLDS.items():
        if restriction in report["held"]:
            assert {what for what in refused if not found[what]} == set(), restriction
    assert found["own limits"]
    assert report["missing"] == {} or set(report["missing"].values()) != {""}
    assert not found["scratch"]
    assert not found["programs"]
    assert not found["memory"]
    assert found["too much memory"]
