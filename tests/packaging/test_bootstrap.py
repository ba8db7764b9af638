"""The README's set-up says in one line what keeps a machine from it."""

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

FILE = Path(__file__).parents[2] / "bootstrap.py"


def test_an_old_python_and_a_full_disk_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    obstacle = runpy.run_path(str(FILE))["obstacle"]
    assert "needs Python 3.11 or later, and this is 3.10" in obstacle("run", (3, 10, 1))
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1.5e9))
    assert "has 1.5 GB left" in obstacle("tests")


def test_a_proxy_that_refuses_is_told(tmp_path: Path) -> None:
    script = shutil.copy(FILE, tmp_path)
    proxy = {"https_proxy": "http://127.0.0.1:9", "PIP_INDEX_URL": "https://index.invalid"}
    done = subprocess.run(
        [sys.executable, script], env=os.environ | proxy, capture_output=True, text=True
    )
    (line,) = done.stderr.splitlines()
    assert "pip reaches no package index: ProxyError" in line
    assert "refused" in line
