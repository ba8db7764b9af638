"""One version in every place that states it: a release's tag, distributions, citation."""

import os
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


def test_the_citation_has_it() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == VERSION


def test_a_tag_is_this_version_and_the_changelog_has_its_section() -> None:
    tag = os.environ.get("ATTNBENCH_TAG")
    section = "Unreleased" if tag is None else VERSION
    assert tag in (None, f"v{VERSION}")
    assert f"\n## [{section}]" in (ROOT / "CHANGELOG.md").read_text("utf-8")


def test_the_lowest_versions_that_are_tested_are_those_that_are_promised() -> None:
    pins = (ROOT / "constraints-lowest.txt").read_text("utf-8").splitlines()
    promised = project(PROJECTS[0])["dependencies"]
    lowest = {need.partition(",")[0].replace(">=", "==") + ".*" for need in promised}
    assert {pin for pin in pins if pin[0] != "#"} - {"torch==2.13.0"} == lowest - {"torch==2.11.*"}
