"""What importing costs, and that every public name can be had."""

import importlib
import importlib.util
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import attnbench
from tests.cli_runs import python

DOORS = ["adapters", "commands", "saved_inputs", "strategies", "styles", "testing", "timing"]


def run(code: str) -> str:
    return python("-c", code).stdout


def test_importing_attnbench_and_its_command_line_imports_nothing_heavy() -> None:
    code = (
        "import sys, attnbench, attnbench.cli, attnbench.commands, attnbench.registry.catalog;"
        "import attnbench.pytest_plugin;"
        "print([m for m in ('torch', 'pandas', 'hypothesis', 'matplotlib', 'numpy', 'scipy')"
        " if m in sys.modules])"
    )
    assert run(code).strip() == "[]"


def test_a_comparison_imports_torch_in_the_processes_of_its_sides_only() -> None:
    code = "import sys, attnbench_plugins.comparing.command; print('torch' in sys.modules)"
    assert run(code).strip() == "False"


def test_a_check_imports_torch_in_its_children_only() -> None:
    code = (
        "import sys; from attnbench.cli import main; code = main();"
        "print(); print(code, 'torch' in sys.modules)"
    )
    done = python("-c", code, "check", "average", "--invariant", "weights_sum_to_one")
    assert done.stdout.splitlines()[-1] == "0 False", done.stdout


def test_every_public_name_can_be_had() -> None:
    import attnbench

    for name in attnbench.__all__:
        assert getattr(attnbench, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = attnbench.nothing


def test_a_door_is_there_once_attnbench_is_imported() -> None:
    code = f"import attnbench; print(*[getattr(attnbench, door).__name__ for door in {DOORS}])"
    assert run(code).split() == [f"attnbench.{door}" for door in DOORS]


def exported(module: Any) -> list[str]:
    named = re.findall(r"import \w+ as (\w+)$", inspect.getsource(module), re.MULTILINE)
    return getattr(module, "__all__", named)


@pytest.mark.parametrize("door", [*DOORS[1:], "asv"])
def test_every_name_of_a_door_can_be_had(door: Any) -> None:
    module = importlib.import_module(f"attnbench.{door}")
    assert exported(module)
    for name in exported(module):
        assert getattr(module, name) is not None


ROOT = Path(__file__).parent


def test_no_two_modules_share_a_stem() -> None:
    root = Path(attnbench.__file__).parent
    stems = Counter(path.stem for path in root.rglob("*.py") if path.name != "__init__.py")
    assert [stem for stem, count in stems.items() if count > 1] == []


@pytest.mark.parametrize("door", ["styles", "testing"])
def test_the_toolkits_export_what_their_reference_documents_and_no_more(door: str) -> None:
    page = (ROOT.parent / "docs" / "reference" / "plugins.md").read_text("utf-8")
    members = re.search(rf"::: attnbench.{door}\n.*?members: \[(.*?)\]", page, re.DOTALL)
    assert members is not None
    assert sorted(members[1].split(", ")) == sorted(exported(getattr(attnbench, door)))


NAMED = re.compile(
    r"(?<!entry-points\.)[\"'](attnbench(?:_plugins)?(?:\.[a-z_]+)+)(?::([A-Za-z_]+))?[\"']"
)


def named_in_strings() -> set[tuple[str, str]]:
    """Modules that the core names in strings: preloads, addresses of tasks, package data."""
    root = Path(attnbench.__file__).parent
    texts = [path.read_text("utf-8") for path in root.rglob("*.py")]
    return {match for text in texts for match in NAMED.findall(text)}


def test_a_module_that_is_named_in_a_string_is_there() -> None:
    found = named_in_strings()
    assert ("attnbench.checking.api", "outcomes") in found
    for module, attribute in found:
        if module.removeprefix("attnbench.") in attnbench.__all__:
            continue  # a public name, as a script writes it
        loaded = importlib.import_module(module)
        assert not attribute or hasattr(loaded, attribute), f"{module}:{attribute}"
