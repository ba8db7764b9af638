"""A plugin that kills whoever imports it is left out, and the command goes on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

MAIN = (sys.executable, "-c", "import sys; from attnbench.cli import main; sys.exit(main())")
CHEATS = Path(__file__).parent / "cheats"


def test_a_plugin_that_kills_its_importer_is_left_out_also_by_the_judge(tmp_path: Path) -> None:
    about = tmp_path / "deadly-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: deadly\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[attnbench]\ndeadly = deadly_hooks\n")
    (tmp_path / "deadly_hooks.py").write_text("import os\nos._exit(7)\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*MAIN, "judge", str(CHEATS / "import_raises.py"), "--as", "sdpa"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert "refused (not_loaded)" in done.stdout, done.stdout + done.stderr
    assert "plugin 'deadly' (deadly 1.0) failed to load" in done.stderr
