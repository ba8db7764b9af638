"""Each script of the findings still prints a wrong result, with the version in the table."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "docs" / "findings"


def load() -> Any:
    spec = importlib.util.spec_from_file_location("findings_table", FOLDER / "table.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TABLE = load()
SCRIPTS = [finding for finding in TABLE.read()[0] if "script" in finding]


@pytest.mark.parametrize("finding", SCRIPTS, ids=lambda finding: finding["script"])
def test_a_script_still_prints_what_the_table_says(finding: dict[str, str]) -> None:
    installed = TABLE.installed(finding["library"])
    if installed is None:
        pytest.skip(f"{finding['library']} is not installed: tox -e peers installs it")
    printed = TABLE.run(finding["script"])
    if "mended" in finding:
        assert not TABLE.differ(**printed), f"{finding['script']} is wrong again"
        return
    assert TABLE.differ(**printed), (
        f"{finding['script']} prints the same twice with {finding['library']} {installed}: it is "
        f"mended. Set mended = '{installed}' in docs/findings/findings.toml."
    )
    assert installed == finding["version"], (
        f"it is still wrong in {finding['library']} {installed}, and the table says "
        f"{finding['version']}: write the new version down, and run docs/findings/table.py."
    )
