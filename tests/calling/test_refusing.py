"""What is said of code that cannot be made or called, and that lines to paste can be run."""

import textwrap
from pathlib import Path

import pytest

from attnbench.calling.making import MakingError, recipe_of
from attnbench.calling.refusing import not_called
from attnbench.calling.signature import arguments
from tests.calling.conftest import loaded

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
        ("unknown", "(no name says anything); say what a and b should be.", ""),
    ],
)
def test_of_what_cannot_be_called_the_lines_to_complete_can_be_run(
    repository: Path, name: str, said: str, lines: str
) -> None:
    target = getattr(loaded(repository, SOURCE), name)
    named = arguments(getattr(target, "forward", target), "forward") or []
    first, second, *rest = not_called(target, named, ["TypeError: no"]).splitlines()
    assert first == (
        f"{name} cannot be called: of 1 calls that were tried the likeliest raises TypeError: no"
    )
    assert second.endswith(said)
    assert textwrap.dedent("\n".join(rest[1:])) == lines
    exec(lines, {name: target})
