"""What a confined process may not do between two requests, and what is told of one that fails."""

import os
import signal
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from attnbench_judge.decision import RefusedError
from attnbench_judge.process.entry import Limits

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


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "code.py"
    path.write_text(CODE)
    return path


def test_a_process_that_something_continued_is_refused(confined: Any, code: Path) -> None:
    cell = confined(code, "spins")
    assert cell.call(INPUTS, {}).output is not None
    assert cell.call(INPUTS, {}).output is not None  # it stands still between them
    os.kill(cell.pid, signal.SIGCONT)
    time.sleep(0.2)
    with pytest.raises(RefusedError) as refused:
        cell.call(INPUTS, {})
    assert refused.value.name == "went_on"


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
    confined: Any, code: Path, text: str, name: str, told: str
) -> None:
    code.write_text(text)
    with pytest.raises(RefusedError) as refused:
        confined(code, name)
    assert refused.value.name == "not_loaded"
    assert told in refused.value.detail
    assert "\n" not in refused.value.detail
    assert "candidate.py" not in refused.value.detail


def test_a_file_beside_a_candidate_shadows_no_module(confined: Any, code: Path) -> None:
    (code.parent / "sched.py").write_text("raise ValueError('not for you')")
    (code.parent / "helper.py").write_text("from sched import scheduler")
    code.write_text("import helper\n" + CODE)
    assert confined(code, "spins", paths=[str(code.parent)]).callees[0]["name"] == "spins"


def test_a_docstring_that_raises_is_no_text(confined: Any, code: Path) -> None:
    cell = confined(code, "documented")
    assert cell.callees[0]["text"] == ""
    assert cell.call(INPUTS, {}).output is not None


def test_an_output_of_another_type_is_not_plain(confined: Any, code: Path) -> None:
    cell = confined(code, "of_another_type")
    with pytest.raises(RefusedError, match="complex64") as refused:
        cell.call(INPUTS, {})
    assert refused.value.name == "not_plain"


def test_all_answers_together_are_limited(confined: Any, code: Path) -> None:
    cell = confined(code, "sleeps", Limits(total_s=0.5))
    assert cell.call(INPUTS, {}).output is not None
    calls = (cell.call(INPUTS, {}) for _ in range(20))
    with pytest.raises(RefusedError, match=r"more than 0\.5 s") as refused:
        list(calls)
    assert refused.value.name == "took_too_long"


def test_what_processes_beside_it_compute_after_it_stands_still_counts(
    confined: Any, code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell, computed = confined(code, "sleeps"), [0.0]
    monkeypatch.setattr(cell, "_clocks", Mock(counts=True, read=lambda: (computed[0], 0.0)))
    monkeypatch.setattr(cell, "_check_alone", lambda: computed.append(computed.pop() + 0.25))
    assert cell.call(INPUTS, {}).seconds == 0.25
