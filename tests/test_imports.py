"""What importing costs, and that every public name can be had."""

import subprocess
import sys

import pytest


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_attnbench_and_its_command_line_imports_nothing_heavy():
    code = (
        "import sys, attnbench, attnbench.cli, attnbench.registry.catalog, attnbench.pytest_plugin;"
        "print([m for m in ('torch', 'pandas', 'hypothesis', 'matplotlib', 'numpy', 'scipy')"
        " if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_every_public_name_can_be_had():
    import attnbench

    for name in attnbench.__all__:
        assert getattr(attnbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnbench.nothing
