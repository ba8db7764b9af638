"""The styles that options take: each has an adapter, and modules are named for them."""

import importlib

import pytest

from attnbench import adapters
from attnbench.calling import styles
from attnbench.calling.styles import STYLES


@pytest.mark.parametrize("style", STYLES)
def test_each_name_that_options_take_has_an_adapter_of_its_own(style: str) -> None:
    module, _, name = STYLES[style].partition(":")
    adapter = getattr(importlib.import_module(f"{styles.__name__}.{module}"), name)
    assert callable(adapter)
    assert style in adapters.__all__
    assert name == "flex_of" or adapter is getattr(adapters, style)
