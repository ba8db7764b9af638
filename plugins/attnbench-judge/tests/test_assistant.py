"""The processes of the judge's own, beside which a candidate is called."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from attnbench_judge.assistant import Assistant
from attnbench_judge.decision import RefusedError
from attnbench_judge.entry import Limits, Nursery
from attnbench_judge.trial import Task

pytestmark = pytest.mark.slow


SEARCHES = """
import os
from torch.nn.functional import scaled_dot_product_attention as right
TURNED = bytes((number + 1) % 256 for number in range(256))  # or it would find what it looks for


def _held(turned):
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            ends, access, *_ = line.split(None, 5)
            if access[0] == "r" and "attnbench-judge" not in line and "[v" not in line:
                first, last = (int(end, 16) for end in ends.split("-"))
                memory.seek(first)
                if memory.read(last - first).translate(TURNED).find(turned) >= 0:
                    return True
    return False


WORDS = {words}
FOUND = [_held(bytes.fromhex(word)) for word in WORDS]
assert FOUND == [True, False, False], FOUND


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    return right(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
"""
ATTENTION = "def attention(query, key, value, attn_mask=None, is_causal=False):\n"


def arguments(file: Path, *more: str) -> list[str]:
    few = ["--as", "sdpa", "--invariant", "agrees_with_float64", "--length", "256"]
    return [sys.executable, "-m", "attnbench", "judge", f"{file}:attention", *few, *more]


def test_a_candidate_finds_no_seed_and_no_environment_of_the_command(tmp_path: Path) -> None:
    seed, secret = 58291736408251, "of the environment only"
    file = tmp_path / "searches.py"
    known = (str(file), str(seed), secret)
    words = [bytes(number + 1 for number in word.encode()).hex() for word in known]
    file.write_text(SEARCHES.replace("{words}", repr(words)))
    found = subprocess.run(
        arguments(file, "--seed", str(seed), "--json"),
        env={**os.environ, "ATTNBENCH_TEST_SECRET": secret},
        capture_output=True,
        text=True,
        check=False,
    )
    (told,) = json.loads(found.stdout)["judgements"]
    assert told["verdict"] == "accepted", told["sentence"]
    assert (found.returncode, found.stderr) == (0, "")


@pytest.mark.parametrize(
    ("number", "as_group"),
    [
        pytest.param(signal.SIGINT, True, marks=pytest.mark.long),
        (signal.SIGINT, False),
        pytest.param(signal.SIGTERM, False, marks=pytest.mark.long),
        (signal.SIGKILL, False),
    ],
)
def test_nothing_is_left_of_a_judge_that_is_ended(
    tmp_path: Path, number: signal.Signals, as_group: bool
) -> None:
    file = tmp_path / "hangs.py"
    file.write_text(f"import time\n\n\n{ATTENTION}    time.sleep(60)\n")
    judge = subprocess.Popen(
        arguments(file), stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    started: dict[int, psutil.Process] = {}
    deadline = time.monotonic() + 60
    while len(started) < 5 and judge.poll() is None:  # an assistant, and two that start candidates
        assert time.monotonic() < deadline
        started |= {p.pid: p for p in psutil.Process(judge.pid).children(recursive=True)}
        time.sleep(0.1)
    send = os.killpg if as_group else os.kill  # as a terminal does
    send(judge.pid, number)
    out, _ = judge.communicate()
    assert (judge.returncode, out) == (130 if number == signal.SIGINT else -number, b"")
    _, left = psutil.wait_procs(list(started.values()), timeout=20)
    assert not left


def test_an_assistant_that_has_ended_is_told_and_replaced() -> None:
    place = str(Path(__file__).with_name("right.py")), "_Module"
    task = Task(":".join(place), place, "sdpa", {}, "quick", (), 1, Limits())
    with contextlib.closing(Nursery()) as nursery:
        assistant = Assistant(nursery)
        assistant.ask(task)
        found = assistant.answer().refused
        assert found is not None
        assert found.name == "not_loaded"
        os.kill(assistant._pid, signal.SIGSTOP)  # or it might answer first
        assistant.ask(task)
        os.kill(assistant._pid, signal.SIGKILL)
        with pytest.raises(RefusedError, match="has ended"):
            assistant.answer()
        assistant.give_up()
        assistant.ask(task)
        assert assistant.answer().refused is not None
        ended = assistant._pid
        os.kill(ended, signal.SIGKILL)
        while psutil.Process(ended).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        assistant.ask(task)  # one that ended idle is replaced at once
        assert assistant.answer().refused is not None
        assistant.close()
        assert assistant.ended
