"""A deprecated name of the toolkit warns and works, and goes in the release that it names."""

import re
from importlib import metadata
from pathlib import Path

import pytest

from attnbench import testing
from attnbench.oracle.budget import Oracle


def test_a_deprecated_name_works_and_warns_when_it_goes_and_why() -> None:
    with pytest.warns(DeprecationWarning, match=r"testing.Oracle .* removed in 0.3: .*notice"):
        assert testing.Oracle is Oracle
    assert "Oracle" not in testing.__all__
    with pytest.raises(AttributeError, match="has no attribute 'Orcle'"):
        _ = testing.Orcle


def test_it_is_deleted_in_the_release_that_the_warning_names() -> None:
    release = tuple(map(int, metadata.version("attnbench").split(".")[:2]))
    assert release < (0, 3), "delete __getattr__ of attnbench.testing"


def test_the_toolkit_exports_what_its_reference_documents_and_no_more() -> None:
    page = Path(__file__).parents[1] / "docs" / "reference" / "testing.md"
    members = re.search(
        r"::: attnbench.testing\n.*?members: \[(.*?)\]", page.read_text(), re.DOTALL
    )
    assert members is not None
    assert sorted(members[1].split(", ")) == sorted(testing.__all__)
