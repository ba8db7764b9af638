"""Folders of judges that were killed are removed, and those of living ones are not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from attnbench_judge.scratch_folder import ScratchFolder

pytestmark = pytest.mark.slow


MAKE = """
import os, signal, sys
from attnbench_judge.scratch_folder import ScratchFolder
print(ScratchFolder().path, flush=True)
sys.stdin.read(1)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_a_killed_judges_folder_is_removed_by_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    with subprocess.Popen(
        [sys.executable, "-c", MAKE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        left = Path(process.stdout.readline().strip())
        (left / "file").write_text("of the candidate")
        os.utime(left, (0, 0))
        ScratchFolder().remove()
        assert left.is_dir()  # its judge lives
        process.communicate("x")
    new = ScratchFolder()
    assert not left.exists()
    new.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_new_folder_is_left_to_be_locked(tmp_path: Path) -> None:
    new = tmp_path / "attnbench-judge-of-a-moment-ago"
    new.mkdir()
    other = tmp_path / "something else"
    other.mkdir()
    os.utime(other, (0, 0))
    ScratchFolder().remove()
    assert new.is_dir()
    assert other.is_dir()
