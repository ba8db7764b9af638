"""Mistakes as rows of text: read, applied to the source of their twin, and imported."""

from __future__ import annotations

import linecache
import traceback
from importlib import import_module
from types import ModuleType

import pytest
import torch
from attnbench_zoo import Entry, blind_entries, entries
from attnbench_zoo.patches import TWINS, Row, apply, rows, source_of

from attnbench import Case


@pytest.mark.parametrize("row", rows().values(), ids=lambda row: row.name)
def test_a_row_changes_the_source_of_its_twin_and_is_python(row: Row) -> None:
    source = source_of(row)
    changed = apply(row, source)
    assert changed.text != source
    compile(changed.text, row.name, "exec")


def test_a_changed_source_is_imported_by_the_name_of_its_row() -> None:
    module: ModuleType = import_module("attnbench_zoo.bugs.scale_missing")
    assert module.SPEC.name == "scale_missing"
    assert module.Attention is not TWINS["attention"].module.__dict__["Attention"]
    with pytest.raises(ModuleNotFoundError):
        import_module("attnbench_zoo.bugs.nothing_of_that_name")


def test_a_traceback_shows_the_line_that_was_changed() -> None:
    (entry,) = (entry for entry in entries() if entry.name == "mask_never_applied")
    assert entry.edited is not None
    file, number = entry.edited
    entry.candidate(Case())
    assert linecache.getline(file, number).strip() == "return scores"
    (entry,) = (entry for entry in entries() if entry.name == "refuses_autocast")
    with pytest.raises(RuntimeError) as caught, torch.autocast("cpu"):
        entry.candidate(Case()).output()
    assert "raise RuntimeError" in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize("entry", blind_entries(), ids=lambda entry: entry.name)
def test_a_mutant_of_the_blind_part_has_its_thread(entry: Entry) -> None:
    assert any("/" in bug and "#" in bug for bug in entry.bugs)
    assert entry.mistake.endswith(".")
    assert not entry.killers
