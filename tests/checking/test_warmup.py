"""What the process does once, from which those of a check are forked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRAW = """
import sys
import attnbench.checking.warmup
from hypothesis import Phase, strategies as st
from attnbench.checking.hypothesis_engine import search
from attnbench.checking.runner import seeded
if sys.argv[1:]:
    import many
drawn = []
with seeded():
    search(
        st.integers(), lambda n: drawn.append(n) or False, phases=(Phase.generate,), examples=300
    )
print(drawn)
"""


@pytest.mark.slow
def test_what_is_drawn_does_not_depend_on_the_modules_that_are_loaded(tmp_path: Path) -> None:
    (tmp_path / "many.py").write_text(f"NUMBERS = {[7_919 * n for n in range(100, 300)]}\n")
    script = tmp_path / "draw.py"
    script.write_text(DRAW)

    def drawn(*arguments: str) -> str:
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    without = drawn()
    assert without.count(",") > 200
    assert drawn("loaded") == without
