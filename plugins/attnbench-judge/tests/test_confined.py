"""What a confined process may not do between two requests, and what is told of one that fails."""

import os
import signal
import time
from pathlib import Path

import pytest
import torch
from attnbench_judge.confined import Confined
from attnbench_judge.decision import RefusedError
from attnbench_judge.entry import Limits

pytestmark = pytest.mark.slow


CODE = """
import threading, time
def spins(query, key, value):
    def work():
        while True:
            pass
    threading.Thread(target=work, daemon=True).start()
    return query + value

class Documented:
    @property
    def __doc__(self):
        raise RuntimeError("no text")
    def __call__(self, query, key, value):
        return query + value

documented = Documented()

def sleeps(query, key, value):
    time.sleep(0.2)
    return query + value

def of_another_type(query, key, value):
    return (query + value).cfloat()
"""
INPUTS = [torch.ones(1, 1, 2, 4)] * 3


def test_a_process_that_something_continued_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    cell = Confined([(str(tmp_path / "code.py"), "spins")], Limits())
    try:
        cell.load()
        assert cell.call(INPUTS, {}).output is not None
        assert cell.call(INPUTS, {}).output is not None  # it stands still between them
        os.kill(cell.pid, signal.SIGCONT)
        time.sleep(0.2)
        with pytest.raises(RefusedError) as refused:
            cell.call(INPUTS, {})
        assert refused.value.name == "went_on"
    finally:
        cell.close()


@pytest.mark.parametrize(
    ("text", "name", "told"),
    [
        ("import no_such_module_of_anybody\n", "", "ModuleNotFoundError: No module named"),
        ("def f(:\n", "", "SyntaxError: "),
        (
            "x = 1\n\nraise ValueError('first\\nsecond')\n",
            "",
            "ValueError: first second, at code.py:3",
        ),
        ("class code: pass\n", "", "defines no function, but the class code, and"),
        (CODE, "nothing", "AttributeError: module 'code' has no attribute 'nothing'"),
    ],
)
def test_why_nothing_was_loaded_is_one_line(
    tmp_path: Path, text: str, name: str, told: str
) -> None:
    (tmp_path / "code.py").write_text(text)
    cell = Confined([(str(tmp_path / "code.py"), name)], Limits())
    try:
        with pytest.raises(RefusedError) as refused:
            cell.load()
        assert refused.value.name == "not_loaded"
        assert told in refused.value.detail
        assert "\n" not in refused.value.detail
        assert "candidate.py" not in refused.value.detail
    finally:
        cell.close()


def test_a_file_beside_a_candidate_shadows_no_module(tmp_path: Path) -> None:
    (tmp_path / "sched.py").write_text("raise ValueError('not for you')")
    (tmp_path / "helper.py").write_text("from sched import scheduler")
    (tmp_path / "code.py").write_text("import helper\n" + CODE)
    place = str(tmp_path / "code.py"), "spins"
    cell = Confined([place], Limits(), [str(tmp_path)])
    try:
        assert cell.load()[0]["name"] == "spins"
    finally:
        cell.close()


def test_a_docstring_that_raises_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    cell = Confined([(str(tmp_path / "code.py"), "documented")], Limits())
    try:
        assert cell.load()[0]["text"] == ""
        assert cell.call(INPUTS, {}).output is not None
    finally:
        cell.close()


def test_an_output_of_another_type_is_not_plain(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    cell = Confined([(str(tmp_path / "code.py"), "of_another_type")], Limits())
    try:
        cell.load()
        with pytest.raises(RefusedError, match="complex64") as refused:
            cell.call(INPUTS, {})
        assert refused.value.name == "not_plain"
    finally:
        cell.close()


def test_all_answers_together_are_limited(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(CODE)
    limits = Limits(total_s=0.5)
    cell = Confined([(str(tmp_path / "code.py"), "sleeps")], limits)
    try:
        cell.load()
        assert cell.call(INPUTS, {}).output is not None
        calls = (cell.call(INPUTS, {}) for _ in range(20))
        with pytest.raises(RefusedError, match=r"more than 0\.5 s") as refused:
            list(calls)
        assert refused.value.name == "took_too_long"
    finally:
        cell.close()


def test_what_processes_beside_it_compute_after_it_stands_still_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        counts, now = True, 0.0

        def seconds(self) -> float:
            return self.now

        def close(self) -> None:
            pass

    (tmp_path / "code.py").write_text(CODE)
    cell = Confined([(str(tmp_path / "code.py"), "sleeps")], Limits())
    try:
        cell.load()
        clock = Clock()
        monkeypatch.setattr(cell, "_clock", clock)
        monkeypatch.setattr(cell, "_check_alone", lambda: setattr(clock, "now", 0.25))
        assert cell.call(INPUTS, {}).seconds == 0.25
    finally:
        cell.close()
