"""Old names of modules: every error that meets one says the new one."""

from __future__ import annotations

import importlib.util
import re
import tomllib
from importlib import metadata, resources
from pathlib import Path

import pytest

import attnbench
from attnbench.errors import AttnbenchError
from attnbench.registry.discovery import Plugin, load_plugin
from attnbench.subject.lookup import resolve

TABLE = tomllib.loads(
    resources.files("attnbench.registry").joinpath("renames.toml").read_text("utf-8")
)


@pytest.mark.parametrize("new", sorted(set(TABLE.values())))
def test_every_new_name_is_a_module(new: str) -> None:
    assert importlib.util.find_spec(new) is not None


def test_an_entry_point_at_an_old_path_is_told_the_new_one() -> None:
    point = metadata.EntryPoint("old", "attnbench_plugins.additive", "attnbench")
    plugin = Plugin("old", point.value, "mine", "1", "found", entry_point=point)
    loaded = load_plugin(plugin)
    assert loaded.status == "failed"
    assert loaded.message.endswith(
        "attnbench_plugins.additive was renamed to attnbench_plugins.scorings.additive"
    )


@pytest.mark.parametrize("old", ["attnbench_plugins.additive", "attnbench.workers"])
def test_an_address_at_an_old_path_is_told_the_new_one(old: str) -> None:
    with pytest.raises(AttnbenchError, match=re.escape(f"{old} was renamed to {TABLE[old]}")):
        resolve(f"{old}:SPEC")


@pytest.mark.parametrize(
    ("line", "old"),
    [
        ("from attnbench.workers import Task", "attnbench.workers"),
        ("from attnbench.cases import Case", "attnbench.cases"),
        ("import attnbench.evidence.tape", "attnbench.evidence"),
        ("from attnbench.invariants import masking", "attnbench.invariants.masking"),
    ],
)
def test_a_file_that_imports_an_old_path_is_told_the_new_one(
    tmp_path: Path, line: str, old: str
) -> None:
    file = tmp_path / f"mine_{old.rpartition('.')[2]}.py"
    file.write_text(line + "\n")
    with pytest.raises(AttnbenchError, match=re.escape(f"{old} was renamed to {TABLE[old]}")):
        resolve(f"{file}:SPEC")


def test_an_old_attribute_of_the_package_is_told_its_new_name() -> None:
    with pytest.raises(AttributeError, match=r"renamed to attnbench\.processes\.pool"):
        _ = attnbench.workers
    with pytest.raises(AttributeError, match=r"no attribute .wrkers.$"):
        _ = attnbench.wrkers
