"""Where torch is not installed plugins are found and help is printed; the rest says what to do."""

import importlib.util
import subprocess
import sys


def attnbench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "import sys, attnbench.cli; sys.exit(attnbench.cli.main())"]
    return subprocess.run([*command, *arguments], capture_output=True, text=True)


def test_torch_is_not_here() -> None:
    assert importlib.util.find_spec("torch") is None


def test_the_package_and_the_registry_import() -> None:
    import attnbench
    from attnbench.registry.discovery import discover

    assert attnbench.ScoringSpec(name="a", make=print).name == "a"
    assert {"additive", "scaled_dot"} <= {plugin.name for plugin in discover()}


def test_plugins_are_listed() -> None:
    result = attnbench("list", "--plugins")
    assert result.returncode == 0, result.stderr
    assert "additive" in result.stdout


def test_help_is_printed_for_every_command() -> None:
    from attnbench.cli import COMMANDS

    assert "check" in attnbench("--help").stdout
    for command in (*COMMANDS, "compare", "new", "report"):
        result = attnbench(command, "--help")
        assert result.returncode == 0, result.stderr


def test_loading_says_that_torch_is_missing() -> None:
    result = attnbench("list", "--plugins", "--load")
    assert result.returncode == 3
    assert "No module named 'torch'" in result.stdout


def test_a_command_that_needs_torch_is_one_clear_error() -> None:
    result = attnbench("list")
    assert result.returncode in (2, 3)
    assert "torch" in result.stderr
    assert "Traceback" not in result.stderr
