"""A scratch repository with scoring functions of its own and an asv suite, for tests.

asv imports this module as a plugin, too: it brings an environment that is the present Python with
the commit's checkout on its path, so that nothing is built or fetched.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attnbench

ROOTS = [str(Path(attnbench.__file__).parents[1]), str(Path(__file__).parent)]

SCORES = """\
import attnbench
import torch


class Scores(torch.nn.Module):
    def __init__(self, query_size, key_size, *, work, wide):
        super().__init__()
        self.work, self.wide = work, wide

    def forward(self, query, key):
        once = query @ key.mT / query.shape[-1] ** 0.5
        held = once.new_zeros(self.wide, *once.shape)  # memory that tells the functions apart
        for _ in range(self.work - 1):
            once = torch.maximum(once, query @ key.mT / query.shape[-1] ** 0.5)
        return once + held.sum(0)


def spec(name, work, wide):
    def make(query_size, key_size):
        return Scores(query_size, key_size, work=work, wide=wide)

    return attnbench.ScoringSpec(name=name, make=make, equal_sizes=True)


def attnbench_scorings():
    for name, (work, wide) in FUNCTIONS.items():
        yield spec(name, work, wide)


"""

SUITE = """\
from attnbench import asv

asv.fill(globals())
"""

BLOCKED = "attnbench,attnbench-kernels,attnbench-ring"  # they would take minutes

Functions = Mapping[str, tuple[int, int]]
"""How often each scoring function does its work, and how many score tensors it holds."""


class Scratch:
    """The repository.

    Args:
        folder: where it is made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "home").mkdir(parents=True)
        self._write("benchmarks/__init__.py", "")
        self._write("benchmarks/attention.py", SUITE)
        self._write("scratch-1.0.dist-info/METADATA", "Name: scratch\nVersion: 1.0\n")
        self._write(
            "scratch-1.0.dist-info/entry_points.txt", "[attnbench]\nscratch = scratch_scores\n"
        )
        conf = {
            "version": 1,
            "project": "scratch",
            "repo": ".",
            "branches": ["main"],
            "plugins": [".asv_scratch"],
            "environment_type": "checkout",
            "launch_method": "forkserver",
            "results_dir": "results/asv",
            "env_dir": "env",
            "html_dir": "html",
        }
        self._write("asv.conf.json", "// with a comment\n" + json.dumps(conf, indent=2))
        self._write(".gitignore", "/home/\n/env/\n/html/\n/results/\n__pycache__/\n")
        self.run("git", "init", "-q", "-b", "main")
        self.asv("machine", "--yes", "--machine", "here")

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def run(self, *command: str, codes: tuple[int, ...] = (0,), blocked: str = BLOCKED) -> str:
        """Run a command in the repository; gives what it printed."""
        identity = {
            f"GIT_{who}_{what}": "scratch@example.invalid"
            for who in ("AUTHOR", "COMMITTER")
            for what in ("NAME", "EMAIL")
        }
        env = {
            **os.environ,
            **identity,
            "HOME": str(self.folder / "home"),
            # asv takes what PYTHONPATH names off sys.path: the installed package must not be there
            "PYTHONPATH": os.pathsep.join(r for r in ROOTS if "site-packages" not in r),
            "OMP_NUM_THREADS": "1",
            "ATTNBENCH_DISABLED_PLUGINS": blocked,
        }
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode in codes, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def asv(self, *arguments: str, codes: tuple[int, ...] = (0,), blocked: str = BLOCKED) -> str:
        """Run asv."""
        return self.run(sys.executable, "-m", "asv", *arguments, codes=codes, blocked=blocked)

    def commit(self, functions: Functions) -> str:
        """Commit these scoring functions; gives the commit's hash."""
        self._write("scratch_scores.py", SCORES + f"FUNCTIONS = {dict(functions)!r}\n")
        self.run("git", "add", ".")
        self.run("git", "commit", "-q", "-m", ", ".join(functions))
        return self.run("git", "rev-parse", "HEAD").strip()

    def numbers(
        self, commit: str, environment: str = "checkout"
    ) -> dict[tuple[str, str], float | None]:
        """asv's numbers of a commit, by benchmark and parameters; NaN for ``n/a``."""
        folder = self.folder / "results" / "asv"
        (path,) = (folder / "here").glob(f"{commit[:8]}-{environment}*.json")
        content = json.loads(path.read_text())
        found = {}
        for name, values in content["results"].items():
            row: dict[str, Any] = dict(zip(content["result_columns"], values, strict=False))
            (cases, devices) = row["params"]
            names = [f"{case} {device}" for case in cases for device in devices]
            results = row["result"] or [None] * len(names)
            found.update({(name, n): r for n, r in zip(names, results, strict=True)})
        return found


def changed(output: str) -> set[str]:
    """Names of the benchmarks in the table that ``asv continuous`` prints."""
    # change, before, after, ratio, benchmark
    rows = r"^\|\s*[-+!*]\s*\|(?:[^|]*\|){3}\s*([\w.]+)"
    return set(re.findall(rows, output, re.MULTILINE))


def _environment() -> type:
    from asv import environment, util

    class Checkout(environment.Environment):  # type: ignore[misc]  # asv has no types
        """The present Python, with the commit's checkout first on its path."""

        tool_name = "checkout"

        def __init__(self, conf: Any, python: str, requirements: Any, variables: Any) -> None:
            self._requirements = requirements  # the base class takes them for set
            super().__init__(conf, python, requirements, variables)

        @classmethod
        def matches(cls, python: str) -> bool:
            return True

        def check_presence(self) -> bool:
            Path(self._path).mkdir(parents=True, exist_ok=True)
            return True

        def install_project(self, conf: object, repo: object, commit_hash: str) -> None:
            if self._get_installed_commit_hash() != commit_hash:
                self.checkout_project(repo, commit_hash)
                self._set_installed_commit_hash(commit_hash)

        def run(self, args: list[str], **keywords: Any) -> object:
            env = {**keywords.pop("env", os.environ), **self._global_env_vars}
            # what runs a benchmark takes PYTHONPATH off the path, and this for it
            env["ASV_PYTHONPATH"] = os.pathsep.join([self._build_root, *ROOTS])
            return util.check_output([sys.executable, *args], env=env, **keywords)

    return Checkout


# asv, which imports this module as its plugin, finds the class as long as it is alive
CHECKOUT = _environment() if "asv.plugin_manager" in sys.modules else None
