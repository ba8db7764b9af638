"""What the judge says of right implementations and of cheats; each runs in a process of its own."""

import json
import runpy
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from attnbench_judge.court import Court
from attnbench_judge.decision import REFUSALS, Judgement, RefusedError
from attnbench_judge.process.entry import Limits

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
CHEATS = HERE / "cheats"
FEW = ("agrees_with_float64",)
SEED = 1
GAIN = 1.1
"""Most of what a cheat that is accepted may be faster than torch's fused attention."""

WRONG = {"wrong", "failed"}
"""Always wrong for some inputs: either the judge's own calls or an invariant meets them first."""

CHANGING = {
    *WRONG,
    *("unsteady", "depends_on_history", "differs_when_timed", "arrived_late", "changed_later"),
}
"""Wrong at times: what it is called depends on which of the calls that are made again are right."""

OUTCOMES = {
    "memory.py:by_address": {"depends_on_history"},
    "memory.py:by_content": {"accepted"},
    "memory.py:one_buffer": {"alias_of_output"},
    "memory.py:ring_of_buffers": {"alias_of_output"},
    "memory.py:one_late": {"depends_on_history", "unsteady"},
    "memory.py:uninitialised": CHANGING,
    "memory.py:into_query": {"alias_of_input"},
    "memory.py:finds_the_judges_memory": CHANGING,
    "memory.py:value_itself": {"alias_of_input"},
    "clocks.py:threaded": CHANGING,
    "clocks.py:lazy": {"not_plain"},
    "clocks.py:patched_clocks": {"accepted"},
    "clocks.py:watches_the_memory": {"accepted", *CHANGING},
    # lasts longer than a judgement on a fast machine, and has gained nothing in it
    "wrong_where.py:right_for_three_seconds": {"accepted", "depends_on_history", "failed"},
    "clocks.py:hidden_processes": {"left_processes", "accepted"},
    "clocks.py:child_without_its_first_thread": {"left_processes"},
    "clocks.py:changes_masks": {"failed"},
    "clocks.py:hides_in_a_program": {"accepted"},
    "clocks.py:deletes_its_own_time": {"accepted"},
    "clocks.py:refuses_to_stop": CHANGING,
    "clocks.py:sleeps": {"accepted"},
    "clocks.py:slow_now_and_then": {"accepted"},
    "less_work.py:with_noise": CHANGING,
    "wrong_where.py:drifts_after_five": {"depends_on_history", "failed"},
    "wrong_where.py:drifts_late": {"depends_on_history"},
    "wrong_where.py:now_and_then": CHANGING,
    "less_work.py:refuses_what_is_timed": {"refused_when_timed"},
    "less_work.py:refuses_all": {"failed", "inconclusive", "refused_when_timed"},
    "protocol.py:forges_an_answer": {"broke_protocol", *CHANGING},
    "protocol.py:answers_early": {"broke_protocol", *CHANGING},
    "protocol.py:answers_all_in_advance": {"broke_protocol"},
    "protocol.py:claims_a_huge_shape": {"broke_protocol"},
    "protocol.py:sends_rubbish": {"broke_protocol"},
    "protocol.py:sends_depth": {"broke_protocol"},
    "protocol.py:shuts_its_half": {"ended"},
    "protocol.py:peeks_at_requests": {
        "accepted",
        "broke_protocol",
    },  # right until the channel is full
    "protocol.py:closes_descriptors": {"ended", "hung"},
    "protocol.py:closes_the_channel": {"ended", "hung"},
    "protocol.py:patches_the_desk": CHANGING,
    "protocol.py:patches_torch": CHANGING,
    "protocol.py:writes_after_answering": {"changed_later", "accepted", *CHANGING},
    "protocol.py:one_buffer_that_nobody_finds": {"changed_later"},
    "protocol.py:saves_at_the_desk": {"accepted"},
    "protocol.py:looks_into_the_judge": {"accepted"},
    "destruction.py:exits": {"ended"},
    "destruction.py:raises_system_exit": {"ended"},
    "destruction.py:raises_interrupt": {"ended"},
    "destruction.py:hangs": {"hung"},
    "destruction.py:crashes": {"ended"},
    "destruction.py:recurses": {"failed"},
    "destruction.py:fork_bomb": {"too_much_memory", "hung", "left_processes", "ended"},
    "destruction.py:leaves_a_daemon": {"left_processes"},
    "destruction.py:fills_memory": {"hung", "too_much_memory", "ended"},
    "destruction.py:fills_memory_by_children": {
        "too_much_memory",
        "hung",
        "left_processes",  # a child that cannot have more answers in the place of its parent
        "ended",
    },
    "destruction.py:fills_the_disk": {"failed", "hung", "too_much_memory"},
    "destruction.py:kills_its_group": {"ended"},
    "destruction.py:prints_a_gigabyte": {"accepted"},
    "destruction.py:waits_where_nothing_stops_it": {"hung"},
    "memory.py:by_time_since_the_last_call": {"accepted", *CHANGING},
    "memory.py:by_number_of_calls": CHANGING,
    # cases of an invariant may differ by their masks only, which it does not look at
    "memory.py:by_hash_of_a_slice": {"accepted", "failed"},
    "wrong_where.py:by_thread": {"depends_on_history"},
    "tricks.py:within_an_arena": {"alias_of_output"},
    "tricks.py:strides_over_the_query": {"alias_of_input"},
    "tricks.py:dispatches_when_copied": {"accepted", *CHANGING},
    "tricks.py:traced": CHANGING,
    "tricks.py:by_a_server": {"left_processes"},
    "tricks.py:preloads_a_library": {"ended", "hung"},
    "tricks.py:nobody_knows_its_type": {"accepted"},
    "tricks.py:a_sparse_one": {"not_plain"},
    "tricks.py:one_without_memory": {"not_plain"},
    # right on a machine without products of bfloat16
    "less_work.py:products_as_fast_as_allowed": {"accepted", *WRONG},
    "descriptions.py:raises_a_verdict": {"refused_when_timed"},
    "descriptions.py:describes_itself": {"accepted"},
    "descriptions.py:forges_its_description": {"not_loaded"},
    "import_hooks.py": {"ended", "wrong", "not_loaded"},
    "import_serves.py": {"left_processes"},
    "import_raises.py": {"not_loaded"},
    "import_exits.py": {"not_loaded", "ended"},
    "import_ends.py": {"ended"},
    "import_hangs.py": {"hung"},
    "import_forks.py": {"too_much_memory", "hung", "ended", "not_loaded"},
    "import_patches.py": {"ended", "wrong", "not_loaded"},
}
"""For each cheat that is not always wrong the refusals, or other verdicts, that answer it."""


def _cheats() -> list[str]:
    """Each function of the folder of cheats, and each file that does all when it is imported."""
    found = []
    for path in sorted(CHEATS.glob("*.py")):
        if path.name.startswith("import_"):
            found.append(path.name)
            continue
        own = runpy.run_path(str(path), run_name="cheats")
        functions = (name for name in own if getattr(own[name], "__module__", "") == "cheats")
        found += [f"{path.name}:{name}" for name in functions if name[0] != "_"]
    return found


ALL = _cheats()


@pytest.fixture(scope="module")
def court() -> Iterator[Court]:
    limits = Limits(memory_gib=3.0, call_s=2.0, load_s=4.0)
    with Court(limits, lengths=(512,), budget_s=0.2) as found:
        found.honest()
        yield found


def test_every_outcome_is_one_that_a_cheat_may_have() -> None:
    assert set(OUTCOMES) <= set(ALL)
    known = {*REFUSALS, "accepted", "failed", "inconclusive"}
    assert all(outcomes <= known for outcomes in OUTCOMES.values())


def _some_at_once() -> Iterator[Any]:
    """The cheats as parameters: the first of each outcome and every fourth row run in CI."""
    seen = set()
    for place, name in enumerate(ALL):
        kind = min(OUTCOMES.get(name, WRONG))
        row = name.startswith("wrong_where.py") and place % 4 == 0
        yield pytest.param(name, marks=() if row or kind not in seen else pytest.mark.long)
        seen.add(kind)


def _gains(found: Judgement) -> bool:
    return any((row.ratio_low or 0.0) >= GAIN for row in found.rows if row.status == "ok")


@pytest.mark.parametrize("cheat", [*_some_at_once()])
def test_cheat_is_refused_or_gains_nothing(court: Court, cheat: str) -> None:
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    judge = partial(court.judge, str(CHEATS / cheat), style="sdpa", invariants=FEW, seed=SEED)
    found = judge()
    assert (found.refusal or found.verdict) in OUTCOMES.get(cheat, WRONG), found.sentence
    assert not found.sentence or found.sentence.isprintable()
    assert found.calls_whole < found.calls_right or not found.ok
    # a busy machine shows gains now and then; one that is there is seen each time
    assert not (_gains(found) and _gains(judge()) and _gains(judge()))
    if cheat.endswith(":slow_now_and_then"):
        assert found.rows[0].ratio < 0.7
    after = {child.pid for child in psutil.Process().children(recursive=True)}
    assert not after - before


@pytest.mark.parametrize(
    ("name", "style"),
    [
        ("textbook", "sdpa"),
        pytest.param("with_log_sums", "sdpa", marks=pytest.mark.long),
        ("module", "sdpa"),
        ("flash", "flash"),
        ("ends_at_the_last_key", "sdpa"),
    ],
)
def test_right_implementation_is_accepted(court: Court, name: str, style: str) -> None:
    whole = name == "textbook"  # the others with all invariants would take minutes
    found = court.judge(
        f"{HERE / 'right.py'}:{name}",
        style=style,
        conventions={"causal": "bottom_right"} if name.startswith("ends") else None,
        invariants=None if whole else FEW,
        seed=SEED,
    )
    assert found.ok, (found.sentence, [o for o in found.outcomes if o.status == "failed"])
    assert found.calls == found.calls_right > 0


def test_what_was_not_tried_is_told(court: Court) -> None:
    target = f"{HERE / 'right.py'}:without_masks"
    found = court.judge(target, style="sdpa", invariants=FEW, seed=SEED)
    assert found.ok, found.sentence
    assert {"dropout", "float64", "scale above 2", "mask (H, L, S)"} <= set(found.untried)
    assert not {"L of 1101 to 4096", "S of 1101 to 4096", "E of 513 to 1024"} & set(found.untried)


def test_waiting_is_seen_apart_from_computing(confined: Any) -> None:
    cell = confined(HERE / "cheats/clocks.py", "sleeps")
    answers = [cell.call([torch.zeros(1, 1, 2, 8)] * 3, {}) for _ in range(20)]
    assert max(answer.idle_s for answer in answers) > 0.009
    assert min(answer.seconds for answer in answers) < 0.009


def test_a_full_channel_is_refused(confined: Any) -> None:
    cell = confined(HERE / "cheats/protocol.py", "peeks_at_requests")
    calls = (cell.call([torch.zeros(1, 1, 2, 8)] * 3, {}) for _ in range(5000))
    with pytest.raises(RefusedError, match="leaves requests unread"):
        list(calls)


def test_error_between_two_answers_accuses_nobody(confined: Any) -> None:
    cell = confined(HERE / "right.py", "without_masks")
    first, second = ([torch.randn(1, 2, 4, 8) for _ in range(3)] for _ in range(2))
    assert cell.call(first, {}).output is not None
    assert cell.call(first, {"no_such_argument": 1}).raised is not None
    assert cell.call(second, {}).output is not None


def test_what_is_wrong_while_invariants_run_at_short_lengths_is_refused() -> None:
    with Court(Limits(), lengths=(256,)) as court:
        found = court.judge(str(HERE / "wrong_for_a_while.py"), style="sdpa", seed=1)
    assert found.refusal == "depends_on_history", (found.verdict, found.sentence)
    assert any(outcome.status == "passed" for outcome in found.outcomes)


@pytest.mark.long
def test_compiled_implementation_is_accepted() -> None:
    with Court(Limits(), lengths=(256,), budget_s=0.3) as court:
        found = court.judge(str(HERE / "compiled.py"), style="sdpa", invariants=FEW, seed=SEED)
    assert found.ok, found.sentence


def test_a_seed_repeats_what_is_drawn(court: Court) -> None:
    target = f"{CHEATS / 'less_work.py'}:zeros"
    first, second = (
        court.judge(target, style="sdpa", invariants=FEW, seed=7).sentence for _ in range(2)
    )
    assert first == second


def test_a_class_is_refused_and_told(court: Court) -> None:
    found = court.judge(f"{HERE / 'right.py'}:_Module", style="sdpa")
    assert found.refusal == "not_loaded"
    assert "_Module is a class" in found.sentence


def test_candidates_of_a_folder_are_ranked(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(
        "from torch.nn.functional import scaled_dot_product_attention as right\n"
        "def good(query, key, value, attn_mask=None, is_causal=False):\n"
        "    return right(query, key, value, attn_mask, is_causal=is_causal)\n"
    )
    (tmp_path / "bad.py").write_text(
        "def bad(query, key, value, attn_mask=None, is_causal=False):\n    return query * 0\n"
    )
    (tmp_path / "broken.py").write_text("def broken(:\n")
    (tmp_path / "another.py").write_text("def another(pages):\n    return pages\n")
    options = ["--as", "sdpa", "--invariant", "keeps_the_contract", "--length", "256", "--json"]
    line = [sys.executable, "-m", "attnbench", "judge", "--candidates", str(tmp_path), *options]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr  # some could not be loaded
    told = json.loads(done.stdout)["judgements"]
    assert Path(told[0]["target"]).name == "good.py"
    assert {Path(one["target"]).name: one["verdict"] for one in told} == {
        "good.py": "accepted",
        "bad.py": "refused",
        "broken.py": "refused",
        "another.py": "refused",
    }
