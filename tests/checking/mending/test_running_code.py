"""Other code of a subject's functions runs, and its own again afterwards."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import ModuleType

import pytest

from attnbench.calling.importing import load
from attnbench.checking.mending.running_code import RunLines, SourceFile

SOURCE = """\
import functools


def plain(x):
    def inner(y):
        return y + x

    return inner(1)


@functools.lru_cache
def kept(x):
    return x + 1


if True:
    def branch(x):
        return x + 2


one, two = lambda x: x + 3, lambda x: x + 4
"""


@pytest.fixture
def module(tmp_path: Path) -> ModuleType:
    path = tmp_path / f"running_{tmp_path.name}.py"
    path.write_text(SOURCE)
    return load(str(path))


def changed(source: SourceFile, old: str, new: str) -> list[str]:
    return [line.replace(old, new) for line in source.lines]


@pytest.mark.parametrize(
    ("number", "old", "new", "name", "expected"),
    [
        (0, "y + x", "y - x", "plain", -4),
        (1, "x + 1", "x - 1", "kept", 4),
        (2, "x + 2", "x - 2", "branch", 3),
    ],
)
def test_a_definition_runs_with_a_change_and_then_as_before(
    module: ModuleType, number: int, old: str, new: str, name: str, expected: int
) -> None:
    source = SourceFile(str(module.__file__))
    function = getattr(module, name)
    function = getattr(function, "__wrapped__", function)
    before = function(5)
    with source.running(source.definitions[number], changed(source, old, new)) as runs:
        assert runs
        assert function(5) == expected
    assert function(5) == before != expected


def test_functions_that_cannot_be_told_apart_are_left_alone(module: ModuleType) -> None:
    source = SourceFile(str(module.__file__))
    with source.running(source.definitions[3], changed(source, "x + 3", "x - 3")) as runs:
        assert not runs
        assert (module.one(5), module.two(5)) == (8, 9)


def test_what_is_no_python_and_a_file_that_was_changed_are_left_alone(
    module: ModuleType,
) -> None:
    path = Path(str(module.__file__))
    source = SourceFile(str(path))
    with source.running(source.definitions[0], changed(source, "y + x", "y +")) as runs:
        assert not runs
    path.write_text(SOURCE.replace("y + x", "y * x"))
    linecache.checkcache(str(path))
    source = SourceFile(str(path))
    with source.running(source.definitions[0], changed(source, "y * x", "y - x")) as runs:
        assert not runs
    assert module.plain(5) == 6


def test_the_lines_that_run_are_noted_with_what_their_names_hold(module: ModuleType) -> None:
    lines = RunLines(set(), set())
    with lines.watched():
        module.plain(5)
        module.plain(3)
    (ran,) = lines.ran.values()
    assert ran[6] == {"y": ("number", 1, (1, 1)), "x": ("number", 3, (5, 3))}
    apart = RunLines({module.plain.__code__}, set())
    with apart.watched():
        module.plain(5)
        module.branch(5)
    assert [*apart.ran.values()] == [{18: {"x": ("number", 5, (5,))}}]
