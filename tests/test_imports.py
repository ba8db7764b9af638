"""The direction of imports, as the design draws it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CORE = ROOT / "attnbench"
LEVELS = [
    {
        "errors", "hookspecs", "making", "specs",
    },
    {
        "addresses", "discovery", "registry",
    },
    {
        "arguments", "attending", "cases", "choosing", "devices", "inputs", "masks",
        "oracles", "pooling", "references", "resolving", "subject",
    },
    {
        "benchmark", "conformance", "drawing", "evidence", "faults", "invariants", "outcomes",
        "profiles", "running", "saved_inputs", "shrinking", "strategies",
    },
    {
        "report",
    },
    {
        "asv", "child_process", "cli", "decorators", "pytest_plugin", "workers",
    },
]  # fmt: skip


def level(module: str) -> int:
    top = module.split(".")[1] if "." in module else ""
    found = [number for number, names in enumerate(LEVELS) if top in names]
    assert found, f"{module} stands on no level: add it to LEVELS"
    return found[0]


def imported(path: Path) -> set[str]:
    """Modules of attnbench and of the plugins that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in names if name.split(".")[0] in ("attnbench", "attnbench_plugins")}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def core_files() -> list[Path]:
    return [path for path in CORE.rglob("*.py") if path != CORE / "__init__.py"]


@pytest.mark.parametrize("path", core_files(), ids=module_name)
def test_a_module_imports_from_its_own_level_or_lower_and_never_a_built_in_plugin(path):
    own = level(module_name(path))
    guarded = type_checking_only(path)
    for name in imported(path) - guarded:
        assert not name.startswith("attnbench_plugins"), f"{path} imports {name}"
        if "." in name and any(name.split(".")[1] in names for names in LEVELS):
            assert level(name) <= own, f"{module_name(path)} imports {name}, which stands higher"


def type_checking_only(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for inner in node.body:
                if isinstance(inner, ast.ImportFrom) and inner.module:
                    names |= {inner.module, *(f"{inner.module}.{a.name}" for a in inner.names)}
    return names


PLUGINS = sorted((ROOT / "plugins" / "attnbench_plugins").rglob("*.py"))


@pytest.mark.parametrize("path", PLUGINS, ids=lambda path: path.stem)
def test_a_plugin_imports_levels_0_to_2_unless_it_brings_invariants(path):
    limit = 3 if "attnbench_invariants" in path.read_text() else 2
    for name in imported(path):
        if name.startswith("attnbench.") and any(name.split(".")[1] in n for n in LEVELS):
            assert level(name) <= limit, f"{path.name} imports {name}"


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_importing_attnbench_and_its_command_line_imports_nothing_heavy():
    code = (
        "import sys, attnbench, attnbench.cli, attnbench.registry, attnbench.pytest_plugin;"
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
