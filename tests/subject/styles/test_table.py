"""The table of styles: it has an adapter for each name that options take."""

from attnbench.subject.styles import STYLE_NAMES
from attnbench.subject.styles.table import STYLES


def test_each_name_that_options_take_has_an_adapter() -> None:
    assert {*STYLES} == {*STYLE_NAMES}
