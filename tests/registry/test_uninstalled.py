"""Each distribution beside the core can be uninstalled: the rest is found, what went is named."""

from __future__ import annotations

import json
import os
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from attnbench.distributions import COMMAND_GROUP, NAME_GROUP
from tests.cli_runs import python

PROJECTS = {
    project["name"]: project
    for path in sorted((Path(__file__).parents[2] / "plugins").glob("*/pyproject.toml"))
    for project in [tomllib.loads(path.read_text("utf-8"))["project"]]
}
WITHOUT = """
import os, sys
from importlib import metadata

GONE = os.environ["ATTNBENCH_TESTS_WITHOUT"]
found = metadata.MetadataPathFinder.find_distributions

class Gone:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] == GONE.replace("-", "_"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

def rest(*given, **options):
    return (one for one in found(*given, **options) if one.metadata["Name"] != GONE)

metadata.MetadataPathFinder.find_distributions = rest
sys.meta_path.insert(0, Gone)
"""
"""What each Python that is started imports first: it finds no distribution of that name."""
ASK = """
import sys
import attnbench
from attnbench.cli import main
commands, names = (words.split() for words in sys.argv[1:])
for command in commands:
    print(main([command, "--help"]), flush=True)
for name in names:
    *module, last = name.split(".")
    try:
        getattr(getattr(attnbench, module[0]) if module else attnbench, last)
    except AttributeError as error:
        print(error, file=sys.stderr)
"""


@pytest.mark.parametrize("gone", PROJECTS)
def test_a_distribution_can_be_uninstalled(gone: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(WITHOUT)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": path, "ATTNBENCH_TESTS_WITHOUT": gone}
    ask = partial(python, folder=tmp_path, **variables)
    points: dict[str, dict[str, str]] = PROJECTS[gone].get("entry-points", {})
    commands, names = points.get(COMMAND_GROUP, {}), points.get(NAME_GROUP, {})
    shown = ask("-m", "attnbench", "--help")
    assert shown.returncode == 0, shown.stderr
    assert not [command for command in commands if f" {command} " in shown.stdout]
    listed = ask("-m", "attnbench", "list", "--plugins", "--load", "--json")
    assert listed.returncode == 0, listed.stderr
    rows: list[dict[str, Any]] = json.loads(listed.stdout)
    assert {row["distribution"] for row in rows} == {"attnbench", *_with_plugins() - {gone}}
    asked = ask("-c", ASK, " ".join(commands), " ".join(names))
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.split() == ["2"] * len(commands)
    told = asked.stderr.splitlines()
    assert len(told) == len(commands) + len(names)
    assert all(line.endswith(f"./plugins/{gone} in the repository.") for line in told), told


def _with_plugins() -> set[str]:
    """The distributions here that bring plugins."""
    from importlib.metadata import entry_points

    return {point.dist.name for point in entry_points(group="attnbench") if point.dist}
