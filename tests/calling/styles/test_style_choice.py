"""The styles that options take: each has an adapter, and modules are named for them."""

import importlib

import pytest

from attnbench import adapters
from attnbench.calling.styles import STYLES, style_choice
from attnbench.errors import UnknownNameError
from attnbench.registry.catalog import registry


@pytest.mark.parametrize("style", STYLES)
def test_each_name_that_options_take_has_an_adapter_of_its_own(style: str) -> None:
    module, _, name = STYLES[style].partition(":")
    adapter = getattr(importlib.import_module(module), name)
    assert callable(adapter)
    assert style in adapters.__all__
    assert adapter is getattr(adapters, style)


def test_what_another_distribution_brings_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adapters, "entry_points", lambda group: {})
    monkeypatch.setattr(registry(), "styles", list)
    vars(adapters).pop("keras", None)
    with pytest.raises(AttributeError, match="It is part of attnbench-peers: pip"):
        _ = adapters.keras
    with pytest.raises(UnknownNameError, match="It is part of attnbench-peers: pip"):
        style_choice.adapted(len, "keras")
