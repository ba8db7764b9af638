"""A release, rehearsed: wheels on an index of this machine, installed from an empty home."""

import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import LEFT_OUT, ROOT, Environment

NAMES = ("attnbench", "attnbench-kernels")
COSINE = """
import attnbench
from torch import nn


class Cosine(nn.Module):
    def forward(self, query, key):
        query = nn.functional.normalize(query, dim=-1)
        key = nn.functional.normalize(key, dim=-1)
        return query @ key.mT


SPEC = attnbench.ScoringSpec(name="cosine", make=lambda q, k: Cosine(), equal_sizes=True)
"""


def built(project: Path, version: str, to: Path, scratch: Path) -> None:
    """Build the wheel of a project as if it had a version."""
    source = shutil.copytree(project, scratch / f"{project.name}-{version}", ignore=LEFT_OUT)
    about = source / "pyproject.toml"
    text = re.sub(r'(?m)^version = ".*"', f'version = "{version}"', about.read_text("utf-8"))
    about.write_text(text, "utf-8")
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "-w", str(to), str(source)], check=True)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an index that has two versions of each distribution."""
    packages, scratch = tmp_path_factory.mktemp("packages"), tmp_path_factory.mktemp("sources")
    for version in ("0.1.0", "0.1.1"):
        built(ROOT, version, packages, scratch)
        built(ROOT / "plugins" / "attnbench-kernels", version, packages, scratch)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = ["run", "-i", "127.0.0.1", "-p", str(port), "-a", ".", "-P", ".", str(packages)]
    server = subprocess.Popen(
        [sys.executable, "-m", "pypiserver", *command, "--disable-fallback"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}/simple/"
    try:
        for _ in range(200):
            try:
                urllib.request.urlopen(address)
                break
            except OSError:
                time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()


def installed(environment: Environment, name: str) -> str:
    shown = environment.run("python", "-m", "pip", "show", name, check=False).out
    return next((line[9:] for line in shown.splitlines() if line.startswith("Version: ")), "")


def test_install_check_upgrade_downgrade_and_uninstall(index: str, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "environment")], check=True)
    user = Environment(tmp_path / "environment" / "bin", tmp_path)
    empty = tmp_path / "home"
    empty.mkdir()
    pip: tuple[Any, ...] = ("--extra-index-url", index)

    user.install(*pip, *(f"{name}==0.1.0" for name in NAMES))
    (tmp_path / "cosine.py").write_text(COSINE)
    bare = {"HOME": str(empty), "PATH": str(user.bin), "CXX": "/no/such/compiler"}
    assert "runs as: native, " in user.attnbench("list", "additive", **bare).out
    failed = user.attnbench("check", "cosine.py:SPEC", check=False, **bare)
    assert failed.code == 1, failed.text
    assert "FAILED cosine: " in failed.out

    user.install(*pip, "--upgrade", "attnbench")
    assert [installed(user, name) for name in NAMES] == ["0.1.1", "0.1.0"]
    assert user.attnbench("list", "additive", **bare).code == 0
    user.install(*pip, "--upgrade", *NAMES)
    assert [installed(user, name) for name in NAMES] == ["0.1.1", "0.1.1"]
    user.install(*pip, *(f"{name}==0.1.0" for name in NAMES))
    assert [installed(user, name) for name in NAMES] == ["0.1.0", "0.1.0"]
    user.uninstall("attnbench-kernels")
    assert "pip install attnbench-kernels" in user.attnbench("list", **bare).err
    user.uninstall("attnbench")
    left = list((tmp_path / "environment").rglob("attnbench*"))
    assert [path for path in left if path.suffix != ".pyc"] == []
