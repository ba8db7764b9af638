"""What importing costs, and that every public name can be had."""

import importlib
import importlib.util
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest

import attnbench


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_attnbench_and_its_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, attnbench, attnbench.cli, attnbench.registry.catalog, attnbench.pytest_plugin;"
        "print([m for m in ('torch', 'pandas', 'hypothesis', 'matplotlib', 'numpy', 'scipy')"
        " if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_every_public_name_can_be_had() -> None:
    import attnbench

    for name in attnbench.__all__:
        assert getattr(attnbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnbench.nothing


@pytest.mark.parametrize(
    "door", ["strategies", "saved_inputs", "testing", "asv", "benchmark.frames"]
)
def test_every_name_of_a_door_can_be_had(door: Any) -> None:
    module = importlib.import_module(f"attnbench.{door}")
    assert module.__all__
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_no_two_modules_share_a_stem() -> None:
    root = Path(attnbench.__file__).parent
    stems = Counter(path.stem for path in root.rglob("*.py") if path.name != "__init__.py")
    assert [stem for stem, count in stems.items() if count > 1] == []


NAMED = re.compile(r"[\"'](attnbench(?:_plugins)?(?:\.[a-z_]+)+)(?::([A-Za-z_]+))?[\"']")


def named_in_strings() -> set[tuple[str, str]]:
    """Modules that the core names in strings: preloads, addresses of tasks, package data."""
    root = Path(attnbench.__file__).parent
    texts = [path.read_text("utf-8") for path in root.rglob("*.py")]
    return {match for text in texts for match in NAMED.findall(text)}


def test_a_module_that_is_named_in_a_string_is_there() -> None:
    found = named_in_strings()
    assert ("attnbench.checking.tasks", "outcomes") in found
    for module, attribute in found:
        loaded = importlib.import_module(module)
        assert not attribute or hasattr(loaded, attribute), f"{module}:{attribute}"


def test_an_entry_point_names_a_module_that_is_there() -> None:
    points = [p for p in entry_points(group="attnbench") if p.dist and p.dist.name == "attnbench"]
    assert len(points) > 50
    for point in points:
        assert importlib.util.find_spec(point.value) is not None, point
