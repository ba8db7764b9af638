"""Classes of the forms that public repositories have, in a file of one's own."""

import sys
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.calling.importing import load

HEAD = """
import enum, math, typing
from dataclasses import dataclass
import torch
from torch import nn
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder whose modules are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    return tmp_path


def written(path: Path, text: str) -> str:
    """Write a file, and give its path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return str(path)


def loaded(folder: Path, text: str) -> ModuleType:
    """The module of a file with these definitions, below the usual imports."""
    return load(written(folder / "source.py", HEAD + textwrap.dedent(text)))
