"""Comparisons of recorded runs: what is evidence, and which are refused."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

import attnbench
from attnbench import cli
from attnbench.benchmark.comparing.recorded_comparison import compare, read_side
from attnbench.benchmark.records import store
from attnbench.benchmark.records.record import Record
from attnbench.errors import RecordError, UsageError

MACHINE = {"node": "here", "processor": "p", "cores": 2}


def record(run: str, start: int, time_s: float | None, **changes: object) -> Record:
    minute, second = divmod(start, 60)
    values: dict[str, object] = {
        "run": run,
        "created": f"2026-01-01T00:{minute:02}:{second:02}+00:00",
        "contract": "forward, warm cache, clock, 1 thread, v1",
        "subject": "additive",
        "case": "b2-L3",
        "workload": "bert_base",
        "direction": "forward",
        "dtype": "float32",
        "device": "cpu",
        "status": "ok" if time_s else "failed",
        "time_s": time_s,
        "times_s": () if time_s is None else (time_s,),
        "machine": MACHINE,
        "versions": {"torch": "2.13.0"},
        **changes,
    }
    return Record(**values)


def side(run: str, times: Sequence[float], **changes: object) -> list[Record]:
    """The record of one run of several processes."""
    return [record(run, 0, statistics.median(times), times_s=tuple(times), **changes)]


def in_turn(times: Sequence[float], *, first: bool) -> list[Record]:
    """Runs of one process each, between which another side's fall."""
    starts = range(0 if first else 1, 2 * len(times), 2)
    return [record(f"run{start}", start, time) for start, time in zip(starts, times, strict=True)]


QUIET = (1.0, 1.004, 0.997, 1.002, 0.999)


def test_runs_in_turn_are_evidence_one_by_one_and_need_no_allowance_for_drift() -> None:
    a = in_turn(QUIET, first=True)
    b = in_turn([1.08 * t for t in QUIET], first=False)
    assert compare(a, b).rows[0].verdict.verdict == "slower"
    apart = compare(side("a", QUIET), side("b", [1.08 * t for t in QUIET]))
    assert apart.rows[0].verdict.verdict == "ambiguous"
    assert "drift of this machine" in apart.notes[0]


def test_processes_of_enough_runs_in_turn_are_counted_by_run() -> None:
    a, b = (
        [r for run in in_turn(QUIET, first=first) for r in (run, run)] for first in (True, False)
    )
    sides = compare(a, b).rows[0].sides
    assert (len(sides.a_s), len(sides.b_s)) == (5, 5)


def test_two_runs_a_side_in_turn_do_not_collapse_to_two_means() -> None:
    def runs(first: int, change: float) -> list[Record]:
        return [
            record(f"run{start}", start, change, times_s=tuple(change * t for t in QUIET))
            for start in (first, first + 2)
        ]

    (turned,) = compare(runs(0, 1.0), runs(1, 1.3)).rows
    assert (len(turned.sides.a_s), len(turned.sides.b_s)) == (10, 10)
    (alone,) = compare(side("a", QUIET), side("b", [1.3 * t for t in QUIET])).rows
    found, other = turned.verdict, alone.verdict
    assert found.verdict == "slower"
    assert found.high - found.low < other.high - other.low


def test_another_hostname_or_kernel_is_noted_and_compared() -> None:
    other = side("b", QUIET, machine={**MACHINE, "node": "there", "system": "Linux 7"})
    found = compare(side("a", QUIET), other)
    assert found.rows[0].verdict.verdict in ("same", "ambiguous")
    assert "node differs: here in A, there in B." in found.notes


def test_a_run_is_not_compared_with_itself() -> None:
    with pytest.raises(RecordError, match="run a is in A and in B"):
        compare(side("a", QUIET), side("a", QUIET))


def test_other_machines_are_refused_by_what_differs() -> None:
    other = side("b", QUIET, machine={**MACHINE, "cores": 64})
    with pytest.raises(RecordError, match=r"different machines(?s:.*)cores: 2 and 64"):
        compare(side("a", QUIET), other)


def test_other_contracts_are_refused_by_both_names() -> None:
    other = side("b", QUIET, contract="forward, cold cache, v1")
    with pytest.raises(RecordError, match=r"different contracts(?s:.*)warm(?s:.*)cold"):
        compare(side("a", QUIET), other)


def test_cases_of_nothing_in_common_are_refused() -> None:
    with pytest.raises(RecordError, match="no subject measured at the same case"):
        compare(side("a", QUIET), side("b", QUIET, subject="dot"))


def test_a_case_that_stopped_working_is_a_row_of_its_own() -> None:
    a = side("a", QUIET) + side("a", QUIET, case="other")
    b = [*side("b", QUIET), record("b", 0, None, case="other")]
    found = compare(a, b)
    last = found.rows[-1].verdict
    assert (last.verdict, last.reason) == ("ambiguous", "A: 1 ok; B: 1 failed")


def test_unverified_records_do_not_count() -> None:
    wrong = side("b", tuple(9 * t for t in QUIET), status="unverified")
    found = compare(side("a", QUIET), side("b", QUIET) + wrong)
    assert abs(found.rows[0].verdict.effect) < 1e-9
    assert "Records left out as unverified: 1." in found.notes


def write(path: Path, records: Sequence[Record]) -> None:
    for each in records:
        store.append(path, each)


def test_the_command_finds_runs_by_id_and_exits_with_1_if_one_is_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "a.jsonl", side("a", QUIET))
    write(tmp_path / "b.jsonl", side("b", [1.3 * t for t in QUIET]))
    assert cli.main(["compare", "a", "b", "--results", str(tmp_path), "--json"]) == 1
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert (row["verdict"], row["alternated"]) == ("slower", False)
    assert cli.main(["compare", "b", "a", "--results", str(tmp_path)]) == 0
    assert "bert_base" in capsys.readouterr().out


def test_the_command_exits_with_4_if_all_it_can_say_is_ambiguous(tmp_path: Path) -> None:
    for run in "ab":
        write(tmp_path / f"{run}.jsonl", side(run, QUIET[:3]))
    paths = [str(tmp_path / f"{run}.jsonl") for run in "ab"]
    assert cli.main(["compare", *paths]) == 4


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("not json\n", "line 1, is damaged"),
        ('{"a": 1}\n', "not a record of attnbench"),
        (record("b", 0, 1.0).to_json().replace('"schema":1', '"schema":99') + "\n", "newer"),
        (record("b", 0, 1.0).to_json().replace('"schema":1', '"schema":0') + "\n", "older"),
        (record("b", 0, None).to_json() + "\n", "it holds 1 failed"),
        ("", "it holds nothing"),
        (None, "not a file or folder of records"),
    ],
)
def test_a_file_that_cannot_be_compared_is_one_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, complaint: str
) -> None:
    write(tmp_path / "a.jsonl", side("a", QUIET))
    if content is not None:
        (tmp_path / "b.jsonl").write_text(content)
    paths = [str(tmp_path / f"{run}.jsonl") for run in "ab"]
    assert cli.main(["compare", *paths, "--results", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert "Traceback" not in error


def test_a_torn_last_line_costs_that_record_only(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, side("a", QUIET))
    with path.open("a") as file:
        file.write(record("a", 9, 1.0).to_json()[:100])
    assert len(read_side(str(path), tmp_path)) == 1


def test_a_comparison_from_python_is_a_table_in_a_notebook(tmp_path: Path) -> None:
    for name, factor in (("a", 1.0), ("b<i>", 1.5)):
        write(tmp_path / f"{name}.jsonl", side(name, [factor * t for t in QUIET]))
    runs = [str(tmp_path / f"{name}.jsonl") for name in ("a", "b<i>")]
    found = attnbench.compare(*runs, margin=4)
    tree = ElementTree.fromstring(f"<div>{found._repr_html_()}</div>")  # it is well-formed
    heads, row = ([cell.text for cell in line] for line in tree.iter("tr"))
    cells = dict(zip(heads, row, strict=True))
    assert (cells["change"], cells["verdict"]) == ("+50.0%", "slower")
    assert "".join(next(iter(tree)).itertext()).endswith("b<i>.jsonl")
    assert "  +50.0%  " in str(found)
    assert found.data["rows"][0]["effect"] == pytest.approx(0.5)
    with pytest.raises(UsageError, match="recorded runs are compared in twos"):
        attnbench.compare(runs[0])
