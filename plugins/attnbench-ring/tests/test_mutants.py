"""Copies of the ring with one edited line are accused by the suite; an unedited one is not."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import attnbench_ring
import pytest

pytestmark = pytest.mark.long
MAIN = (sys.executable, "-c", "import sys; from attnbench.cli import main; sys.exit(main())")
INVARIANTS = ("keeps_the_contract", "agrees_with_scalar_reference", "gradients_are_right")
MUTANTS = {
    "parts are joined without rescaling to the new maximum": (
        "weights, kept = (scores - base).exp(), (before - base).exp()",
        "weights, kept = (scores - base).exp(), torch.ones_like(before)",
        "agrees_with_scalar_reference",
    ),
    "the causal mask leaves out where the rank's queries begin": (
        "shift = first + self.kv_len - self.q_len",
        "shift = self.kv_len - self.q_len",
        "agrees_with_scalar_reference",
    ),
    "the gradients of keys from other ranks do not come back": (
        "slopes = _shift(slopes, length) if slopes else _zeros(shard.key, shard.value)",
        "slopes = _zeros(shard.key, shard.value)",
        "gradients_are_right",
    ),
}


def outcomes(folder: Path, *invariants: str, old: str = "", new: str = "") -> dict[str, str]:
    """The status of some invariants for a ring in which one line differs."""
    package = folder / "attnbench_ring"
    shutil.copytree(Path(attnbench_ring.__file__).parent, package)
    path = package / "one_rank.py"
    text = path.read_text("utf-8")
    assert not old or text.count(old) == 1
    path.write_text(text.replace(old, new) if old else text, "utf-8")
    named = [word for name in invariants for word in ("--invariant", name)]
    done = subprocess.run(
        [*MAIN, "check", "ring", "--profile", "default", "--json", *named],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, sys.path)])},
    )
    assert done.returncode in (0, 1), done.stderr
    return {one["invariant"]: one["status"] for one in json.loads(done.stdout)["outcomes"]}


def test_an_unedited_copy_passes(tmp_path: Path) -> None:
    assert outcomes(tmp_path, *INVARIANTS) == dict.fromkeys(INVARIANTS, "passed")


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_edited_line_is_accused(mutant: str, tmp_path: Path) -> None:
    old, new, killer = MUTANTS[mutant]
    assert outcomes(tmp_path, killer, old=old, new=new)[killer] == "failed"
