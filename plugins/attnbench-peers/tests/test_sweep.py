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

class SpinningAttention(nn.Module):
    def forward(self, x):
        while True:
            pass

exec("class GeneratedAttention(OneAttention):\\n    def forward(self, x): return 2 * x")
"""


def test_a_class_has_one_line_that_says_what_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "shelf" / "__init__.py").write_text("")
    (tmp_path / "shelf" / "attention.py").write_text(CLASSES)
    monkeypatch.syspath_prepend(tmp_path)
    found = {
        cls.__name__.removesuffix("Attention"): (place, cls) for place, cls in classes_of("shelf")
    }
    # of two with one source there is one, and what has no source hides no other
    assert [*found] == ["Generated", "One", "Shut", "Spinning"]
    one, shut, spinning = (
        line_of(*found[name], limit).split("\t")
        for name, limit in (("One", 8.0), ("Shut", 8.0), ("Spinning", 1.0))
    )
    assert (one[0], one[1]) == ("shelf.attention:OneAttention", "checked")
    assert int(one[2]) > 2
    assert one[3] in ("", "CPU limit of 8 s")
    assert shut[1:3] == ["refused", "0"]
    assert "a gate is shut" in shut[3]
    assert spinning[1:] == ["refused", "0", "CPU limit of 1 s"]
