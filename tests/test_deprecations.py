"""A deprecation from its first step, a warning, to its last, an error and a deleted entry."""

import re
from pathlib import Path

import pytest

from attnbench import testing
from attnbench.deprecations import TABLES, deprecated_names, is_gone
from attnbench.oracle.budget import Oracle


def test_first_a_deprecated_name_works_and_warns_when_it_goes_and_why() -> None:
    with pytest.warns(DeprecationWarning, match=r"testing.Oracle .* removed in 0.3: .*notice"):
        assert testing.Oracle is Oracle
    assert "Oracle" not in testing.__all__


def test_then_it_is_gone_and_the_error_says_since_when() -> None:
    gone = deprecated_names("mine", {"old": "json"}, why="use new", gone_in="0.0")
    del TABLES["mine"]
    with pytest.raises(AttributeError, match=r"mine.old was removed in 0.0: use new."):
        gone("old")
    with pytest.raises(AttributeError, match="module 'mine' has no attribute 'odl'"):
        gone("odl")


@pytest.mark.parametrize(
    ("version", "gone"), [("0.1.0", False), ("0.2.9", False), ("0.3.0", True), ("1.0.0", True)]
)
def test_a_name_lasts_until_the_named_minor_release(version: str, gone: bool) -> None:
    assert is_gone("0.3", version) is gone


def test_at_last_its_entry_is_deleted() -> None:
    assert testing.__name__ in TABLES
    overdue = [module for module, (gone_in, _) in TABLES.items() if is_gone(gone_in)]
    assert overdue == [], "delete the deprecated_names of these modules"


def test_the_toolkit_exports_what_its_reference_documents_and_no_more() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "testing.md"
    members = re.search(
        r"::: attnbench.testing\n.*?members: \[(.*?)\]", page.read_text(), re.DOTALL
    )
    assert members is not None
    assert sorted(members[1].split(", ")) == sorted(testing.__all__)
