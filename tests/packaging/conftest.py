"""A fresh environment with the wheel under test, outside the checkout."""

import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent.parent
LEFT_OUT = shutil.ignore_patterns(
    ".git", ".tox", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache", "html"
)


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"

    def json(self) -> Any:
        return json.loads(self.out)


@dataclass(frozen=True)
class Environment:
    """A virtual environment, and a folder outside the checkout that commands run in."""

    bin: Path
    cwd: Path

    def run(self, *command: str, check: bool = True, **env: str) -> Result:
        # what the outer environment says of paths must not reach the inner one
        outer = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")}
        done = subprocess.run(
            [str(self.bin / command[0]), *command[1:]],
            cwd=self.cwd,
            env={**outer, "OMP_NUM_THREADS": "1", "PATH": f"{self.bin}:{outer['PATH']}", **env},
            capture_output=True,
            text=True,
        )
        result = Result(done.returncode, done.stdout, done.stderr)
        assert not check or result.code == 0, f"{' '.join(command)}: {result.text}"
        return result

    def attnbench(self, *arguments: str, check: bool = True, **env: str) -> Result:
        return self.run("attnbench", *arguments, check=check, **env)

    def install(self, *what: str) -> None:
        constraints = str(ROOT / "constraints.txt")
        self.run("python", "-m", "pip", "install", "-q", "--no-compile", "-c", constraints, *what)

    def uninstall(self, *what: str) -> None:
        self.run("python", "-m", "pip", "uninstall", "-q", "-y", *what)


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the sdist and of the wheel that was built from it."""
    source = tmp_path_factory.mktemp("source") / "attnbench"
    shutil.copytree(ROOT, source, ignore=LEFT_OUT)
    out = tmp_path_factory.mktemp("dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source)], check=True
    )
    return out


@pytest.fixture(scope="session")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the compiled kernels, built from their sdist."""
    source = tmp_path_factory.mktemp("kernels") / "attnbench-kernels"
    left_out = shutil.ignore_patterns("build", "dist", "*.egg-info", "__pycache__", "*.so")
    shutil.copytree(ROOT / "plugins" / "attnbench-kernels", source, ignore=left_out)
    out = tmp_path_factory.mktemp("kernels_dist")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source)], check=True
    )
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.fixture(scope="session")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel and what it needs, nothing else."""
    path = tmp_path_factory.mktemp("environment")
    venv.create(path, with_pip=True)
    fresh = Environment(path / "bin", tmp_path_factory.mktemp("outside"))
    fresh.install(str(wheel))
    return fresh
