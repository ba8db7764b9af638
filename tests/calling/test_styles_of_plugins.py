"""A plugin brings a style by a hook, and ``style=`` takes its name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import attnbench
from attnbench.calling.styles import style_choice
from attnbench.errors import StyleError
from attnbench.registry.discovery import call_hooks


def adapt(target: Any, **fields: Any) -> attnbench.MechanismSpec:
    return attnbench.MechanismSpec(name="halved", make=lambda *_: torch.nn.Identity(), **fields)


STYLE = attnbench.Style(
    name="halved", fits=lambda target: None if target is abs else "it is not abs", adapt=adapt
)


@pytest.fixture
def _with_style(monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = SimpleNamespace(attnbench_styles=lambda: [STYLE])
    assert call_hooks(plugin) == (STYLE,)
    brought = SimpleNamespace(styles=lambda: [STYLE])
    monkeypatch.setattr(style_choice, "registry", lambda: brought)


@pytest.mark.usefixtures("_with_style")
def test_a_plugins_style_adapts_what_it_says_fits() -> None:
    spec = style_choice.adapted(abs, "halved", formula="none")
    assert (spec.name, spec.formula) == ("halved", "none")


@pytest.mark.usefixtures("_with_style")
def test_a_plugins_style_says_why_it_does_not_fit() -> None:
    with pytest.raises(StyleError, match="len cannot be called as halved: it is not abs"):
        style_choice.adapted(len, "halved")
