"""Whose frame a frame is, and what of a dying process's words is shown."""

from __future__ import annotations

import json
from pathlib import Path

import pluggy
import torch

import attnbench
from attnbench.processes.tracebacks import is_own_code, last_words


def test_a_frame_is_told_by_its_folder_and_not_by_the_folders_name(tmp_path: Path) -> None:
    for name in ("torch", "attnbench", "hypothesis"):
        assert is_own_code(str(tmp_path / name / "layers.py"))
    for module in (torch, attnbench, json, pluggy):
        assert not is_own_code(str(module.__file__))
    assert not is_own_code("<string>")


def test_a_crash_shows_its_innermost_frame_and_the_users(tmp_path: Path) -> None:
    mine = tmp_path / "mine.py"
    dump = [
        "printed before",
        "Fatal Python error: Segmentation fault",
        "Stack (most recent call first):",
        f'  File "{json.__file__}", line 519 in inner',
        f'  File "{mine}", line 20 in forward',
        *[f'  File "{torch.__file__}", line {n} in call' for n in range(30)],
        "Extension modules: numpy (total: 1)",
    ]
    assert last_words("\n".join(dump)).splitlines()[1:] == [
        "  | printed before",
        "  | Fatal Python error: Segmentation fault",
        f'  |   File "{json.__file__}", line 519 in inner',
        f'  |   File "{mine}", line 20 in forward',
    ]
