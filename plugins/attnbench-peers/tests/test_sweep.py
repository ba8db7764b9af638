"""Each class of a package that is called attention, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest
from attnbench_peers.sweep import classes_of, line_of

CLASSES = """
from torch import nn

class OneAttention(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x

class OtherAttention(nn.Module):
    def forward(self, x):
        return (x @ x.mT).softmax(-1) @ x

class ShutAttention(nn.Module):
    def forward(self, x):
        raise RuntimeError("a gate is shut")

class AbstractAttention(nn.Module): ...
"""


def test_of_classes_with_one_source_one_is_checked_and_a_refusal_has_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "attention.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    found = [*classes_of("shelf")]
    assert [cls.__name__ for _, cls in found] == ["OneAttention", "ShutAttention"]
    (one, status, held, detail), (_, shut, none, said) = (
        line_of(place, cls, 8.0).split("\t") for place, cls in found
    )
    assert (one, status, detail) == ("shelf.attention:OneAttention", "checked", "")
    assert int(held) > 2
    assert (shut, none) == ("refused", "0")
    assert "a gate is shut" in said
