"""What is said of code that cannot be made or called, and that lines to paste can be run."""

import re
import textwrap
from pathlib import Path

import pytest

from attnbench.calling.adaptation import spec_of
from attnbench.calling.importing import load
from attnbench.calling.making import MakingError, recipe_from, recipe_of
from attnbench.calling.refusing import not_called
from attnbench.calling.signature import arguments
from attnbench.errors import StyleError
from tests.calling.conftest import HEAD, loaded, written

SOURCE = """
class Attention(nn.Module):
    def __init__(self, dim, spam):
        super().__init__()
        self.table = spam["table"]

class Layer(nn.Module):
    def forward(self, x, eggs, ham=None): ...

def plain(query, spam, key): ...
def unknown(a, b): ...
"""


def test_what_cannot_be_guessed_of_a_constructor_is_marked(repository: Path) -> None:
    with pytest.raises(MakingError) as raised:
        recipe_of(loaded(repository, SOURCE).Attention)
    assert str(raised.value).splitlines() == [
        "Attention cannot be made: TypeError: 'int' object is not subscriptable (21 calls tried, "
        "the last Attention(dim=E, spam=1))",
        'Say what spam should be, for E features: --make "Attention(dim=E, spam=...)".',
    ]


@pytest.mark.parametrize(
    ("name", "said", "lines"),
    [
        (
            "Layer",
            "(x as hidden); say what eggs should be.",
            "class Called(Layer):\n    def forward(self, x):\n"
            "        return super().forward(x, eggs=...)",
        ),
        (
            "plain",
            "(query as query, key as key); say what spam should be.",
            "def called(query, key):\n    return plain(query, spam=..., key=key)",
        ),
        ("unknown", "(none says what it is); say what a and b should be.", ""),
    ],
)
def test_of_what_cannot_be_called_the_lines_to_complete_can_be_run(
    repository: Path, name: str, said: str, lines: str
) -> None:
    target = getattr(loaded(repository, SOURCE), name)
    named = arguments(getattr(target, "forward", target), "forward") or []
    first, second, third, *rest = not_called(target, named, ["TypeError: no"]).splitlines()
    assert first == (
        f"{name} cannot be called: of 1 calls that were tried the likeliest raises TypeError: no"
    )
    assert second.endswith(said)
    assert textwrap.dedent("\n".join(rest[1:])) == lines
    assert "example=(args, kwargs)" in third
    exec(lines, {name: target})


REFUSED = """
class Attention(nn.Module):
    def __init__(self, dim, {taken}):
        super().__init__()
        self.table, self.proj = {made}, nn.Linear(dim, dim)
    def forward(self, x{more}):
        q = self.proj(x){used}
        return (q @ q.mT).softmax(-1) @ x
"""


@pytest.mark.parametrize(
    ("taken", "made", "filled"),
    [
        ("spam", "spam['table']", "dict(table=1)"),
        ("spam, eggs=3", "spam[eggs - 3].strip()", "['a']"),
        ("spam", "torch.zeros(2) @ spam.matrix", "types.SimpleNamespace(matrix=torch.zeros(2))"),
    ],
)
def test_the_printed_way_to_make_it_is_right_once_it_is_filled_in(
    repository: Path, taken: str, made: str, filled: str
) -> None:
    target = loaded(repository, REFUSED.format(taken=taken, made=made, more="", used="")).Attention
    with pytest.raises(MakingError) as raised:
        spec_of(target)
    printed = re.search(r'--make "(.*)"', str(raised.value))
    assert printed is not None
    assert spec_of(recipe_from(printed[1].replace("...", filled), target)).name == "Attention"


@pytest.mark.parametrize(
    ("more", "used", "filled"),
    [
        (", spam", " + spam['shift']", "dict(shift=1.0)"),
        (", eggs, spam=2", " * eggs.count(2)", "[2]"),
    ],
)
def test_the_printed_class_is_right_once_it_is_filled_in(
    repository: Path, more: str, used: str, filled: str
) -> None:
    text = REFUSED.format(taken="spam=1", made="1", more=more, used=used)
    with pytest.raises(StyleError) as raised:
        spec_of(loaded(repository, text).Attention)
    printed = str(raised.value).partition("check Called:\n")[2].replace("=...", f"={filled}")
    both = text + textwrap.dedent(printed) + "\n"
    target = load(written(repository / "filled.py", HEAD + both)).Called
    assert "called with x (B, L, E)" in spec_of(target).notes[0]
