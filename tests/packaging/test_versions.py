"""One version in every place that states it: a release's tag, distributions, citation, recipe."""

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
PROJECTS = [ROOT / "pyproject.toml", *sorted((ROOT / "plugins").glob("*/pyproject.toml"))]


def project(path: Path) -> Any:
    return tomllib.loads(path.read_text("utf-8"))["project"]


VERSION = project(PROJECTS[0])["version"]


@pytest.mark.parametrize("path", PROJECTS, ids=lambda path: path.parent.name)
def test_every_distribution_has_the_version_of_the_core(path: Path) -> None:
    assert project(path)["version"] == VERSION


@pytest.mark.parametrize("path", PROJECTS[1:], ids=lambda path: path.parent.name)
def test_every_plugin_takes_the_core_of_its_own_minor_version_only(path: Path) -> None:
    major, minor = map(int, VERSION.split(".")[:2])
    wanted = f"attnbench>={major}.{minor},<{major}.{minor + 1}"
    assert wanted in project(path)["dependencies"]


def test_the_citation_and_the_recipe_have_it() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == VERSION
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    assert recipe["context"]["version"] == VERSION


def test_the_recipe_needs_what_the_core_needs() -> None:
    recipe = yaml.safe_load((ROOT / "conda" / "recipe.yaml").read_text("utf-8"))
    run = {re.split(r"[ >]", text)[0] for text in recipe["outputs"][0]["requirements"]["run"]}
    renamed = {"torch": "pytorch", "matplotlib": "matplotlib-base"}
    names = {re.split(r"[<>=]", text)[0] for text in project(PROJECTS[0])["dependencies"]}
    assert run == {"python"} | {renamed.get(name, name) for name in names}


def test_a_tag_is_this_version_and_the_changelog_has_its_section() -> None:
    tag = os.environ.get("ATTNBENCH_TAG")
    section = "Unreleased" if tag is None else VERSION
    assert tag in (None, f"v{VERSION}")
    assert f"\n## [{section}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")
