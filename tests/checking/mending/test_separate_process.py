"""What code does in a process of its own leaves nothing here."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from attnbench.checking.mending.separate_process import first_answers


def test_what_is_yielded_before_an_end_of_any_kind_is_kept(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def raising() -> Iterator[str]:
        print("printed")
        yield "one\nline"
        yield "two"
        raise ValueError("no more")

    def dying() -> Iterator[str]:
        yield "one"
        os.kill(os.getpid(), 9)

    def looping() -> Iterator[str]:
        yield "one"
        while True:
            pass

    assert first_answers(raising, 30) == ("one\nline", "two")
    assert first_answers(dying, 30) == ("one",)
    assert first_answers(looping, 0.5) == ("one",)
    assert capfd.readouterr() == ("", "")


def test_without_forks_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "fork")
    assert first_answers(lambda: ["one"], 30) == ()
