"""``check --watch`` runs again when a file changes."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cli_runs import run

CODE = """\
import torch
from attnbench import ScoringSpec
class Mine(torch.nn.Module):
    def forward(self, query, key):
        return (query / query.shape[-1] ** POWER) @ key.mT
SPEC = ScoringSpec(name="mine", make=lambda q, k: Mine(), equal_sizes=True, laws=["unit_variance"])
"""


def test_a_change_of_the_file_runs_the_check_again_and_ctrl_c_ends_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(CODE.replace("POWER", "0.25"))
    log = tmp_path / "log.txt"
    command = [sys.executable, "-m", "attnbench", "check", "mine.py:SPEC", "--watch"]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--invariant", "unit_variance"], cwd=tmp_path, stdout=out, stderr=out
        )

        def shown(times: int) -> str:
            while log.read_text().count("Watching mine.py") < times:
                assert process.poll() is None, log.read_text()
                time.sleep(0.1)
            return log.read_text()

        try:
            assert "1 failed" in shown(1)
            file.write_text(CODE.replace("POWER", "0.5"))
            assert "1 passed" in shown(2)
            process.send_signal(signal.SIGINT)
            assert process.wait() == 130
        finally:
            process.kill()


def test_without_a_file_there_is_nothing_to_watch() -> None:
    result = run("check", "scaled_dot", "--watch")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "--watch needs a target that is a file" in result.err
