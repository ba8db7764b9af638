"""A file without a name: all that looks like attention is checked, and the rest is told."""

from pathlib import Path
from typing import Any

import pytest

from attnbench.checking.plan import plan
from attnbench.errors import AddressError, StyleError
from attnbench.registry.address import parse_address

OPTIONS: dict[str, Any] = {
    "profile": "quick",
    "device": "cpu",
    "dtypes": None,
    "invariants": ["agrees_with_float64"],
}
SOURCE = """
import torch
from torch import nn

class GoodAttention(nn.Module):
    def forward(self, queries, keys, values):
        return (queries @ keys.mT).softmax(-1) @ values

def odd_attention(query, key, spam, eggs, ham):
    raise ValueError("spam:\\n\\nand eggs")

def plain(x):
    return x
"""
SPEC = "import attnbench\nSPEC = attnbench.get('dot')\n"


def test_what_can_be_called_is_checked_and_the_rest_is_told(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(SOURCE)
    address = parse_address(f"{tmp_path}/model.py")
    made = plan([address], **OPTIONS)
    assert [name for _, name in made["subjects"]] == ["GoodAttention"]
    assert [line for line in made["about"] if line.startswith("not checked: odd_attention: ")]


def test_the_specs_of_a_file_go_before_what_looks_like_attention(tmp_path: Path) -> None:
    (tmp_path / "specs.py").write_text(SOURCE + SPEC)
    made = plan([parse_address(f"{tmp_path}/specs.py")], **OPTIONS)
    assert [name for _, name in made["subjects"]] == ["dot"]


def test_a_file_in_which_nothing_can_be_called_is_one_error(tmp_path: Path) -> None:
    text = SOURCE.partition("class")[0] + SOURCE.partition("@ values")[2]
    (tmp_path / "odd.py").write_text(text)
    with pytest.raises(StyleError, match=r"cannot .*: spam: and eggs at .*odd.py:8, given.*\n"):
        plan([parse_address(f"{tmp_path}/odd.py")], **OPTIONS)
    (tmp_path / "both.py").write_text(text + text.replace("odd_", "odder_"))
    with pytest.raises(
        StyleError, match=r"nothing in .*both.py can be called as it stands:\n  not"
    ):
        plan([parse_address(f"{tmp_path}/both.py")], **OPTIONS)


def test_a_file_without_attention_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "none.py").write_text("x = 1\n1 / 0")
    with pytest.raises(
        AddressError, match=r"none.py looks like attention(.|\n)*line 2 raises Zero"
    ):
        plan([parse_address(f"{tmp_path}/none.py")], **OPTIONS)
