import errno
import html
import json
import re
from pathlib import Path
from typing import Any, Never

import pytest
from attnbench_plugins.page.page import families, render, slope
from markupsafe import Markup

from attnbench.benchmark import records as store
from attnbench.cli import main
from attnbench.errors import UsageError
from attnbench.report.printing import print_parts
from attnbench.report.record_tables import parts, ranked_rows
from tests.kept_reports import assert_report
from tests.measured_records import record


def test_of_several_runs_the_newest_is_shown_and_other_contracts_and_machines_stand_apart() -> None:
    older = [record(time=1e-3, commit="a"), record("slow", time=4e-3, commit="a")]
    newer = [record(time=2e-3, commit="b", created="2026-02-01T00:00:00Z")]
    apart = [
        record("slow", time=9.0, contract="another"),
        record("slow", time=7.0, device_name="another"),
    ]
    table = ranked_rows([*newer, *older, *apart])
    assert [(row.subject, row.time_s) for row in table if row.commit] == [
        ("scaled_dot", 2e-3),
        ("slow", 4e-3),
    ]
    assert {row.time_s for row in table if not row.commit} == {9.0, 7.0}


def layer_record(subject: Any, direction: Any, length: Any, factor: Any) -> Any:
    q_len = 1 if direction == "decode" else length
    return record(
        subject,
        length,
        time=length * factor * 1e-5,
        ratio=float(factor),
        kind="layer",
        direction=direction,
        contract=f"{direction}, warm cache, clock, 1 thread, v1",
        case=f"{direction} {length}",
        workload=f"B=2 S={length}",
        lead=(2,),
        q_len=q_len,
        tokens_per_s=2 * q_len / 1e-3,
        cache_bytes_per_token=256.0 if direction == "decode" else None,
    )


PAIRED = {"ratio": 4.0, "ratio_low": 3.75, "ratio_high": 4.25, "baseline": "scaled_dot"}
RECORDS = (
    record("slow", **PAIRED, times_s=(1e-3, 2e-3, 4e-3), created="2026-02-01T00:00:00Z"),
    record("slow/quick", kind="kernel", ratio=0.537, gain=4.0),
    record(ratio=1.0, machine={"cores": 2, "memory_bytes": 2**34}, versions={"torch": "2.13"}),
    record("wrong", status="unverified", reason="off by 3", ratio=0.1),
    record("large", status="out_of_memory", reason="needs 9 GiB", time=None),
    record(length=128, time=2e-3),
    *(
        layer_record(name, direction, length, factor)
        for name, factor in (("causal_attention", 1), ("mine", 3))
        for direction in ("prefill", "decode")
        for length in (64, 128)
    ),
)
OUTCOMES = [
    {"subject": "slow", "invariant": "layouts_agree", "status": "failed", "reason": "no"},
    {"subject": "slow", "invariant": "unit_variance", "status": "skipped", "reason": "not here"},
]
FORMULAS = dict.fromkeys(["slow", "slow/quick"], ("qᵀk", "Luong")) | {"mine": ("q < k", "")}


def test_a_page_says_this() -> None:
    page = render(
        RECORDS, outcomes=OUTCOMES, formulas=FORMULAS,
        sources=["r.jsonl"],
    )  # fmt: skip
    body = re.sub("(?s)<(style|script)>.*?</\\1>|<svg.*?</svg>", "", page)
    lines = re.sub("<wbr>|</?(small|i|em|strong|a|b|span)[^>]*>", " ", body)
    text = html.unescape(re.sub("<[^>]*>", "\n", lines))
    assert_report("page.txt", re.sub(r"\s*\n\s*", "\n", re.sub("[ \t]+", " ", text)))
    sections = re.findall('<section id="(.*?)">', page)
    assert sections[0] == "scaling"
    assert "causal_attention" not in render(RECORDS[:3])
    labels = re.findall('<td data-label="(.*?)"', page)
    assert {"case", "time", "peak memory", "error / allowed", "status"} < {*labels}


def test_the_terminal_says_this(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    print_parts(parts(RECORDS))
    assert_report("bench.txt", capsys.readouterr().out)


def test_pictures_need_two_lengths_and_have_a_slope() -> None:
    records = [record(length=n, time=3e-9 * n**2) for n in (64, 128)]
    ((title, family),) = families(ranked_rows([*records, record("few")])).items()
    assert [*family] == ["scaled_dot"]
    assert slope(family["scaled_dot"]) == pytest.approx(2.0)
    assert "mask none" in title


@pytest.mark.parametrize("status", ["unverified", "unsupported", None])
def test_a_line_is_broken_at_a_length_without_a_valid_time_and_only_there(status: Any) -> None:
    records = [
        record(name, length=n, time=n * 1e-6)
        for name in ("scaled_dot", "gappy")
        for n in (64, 128, 256, 512)
        if (name, n) != ("gappy", 128)
    ]
    if status:
        records.append(record("gappy", 128, 1e-3, status=status))
    gappy, whole = re.findall("(?s)<svg.*?</svg>", render(records))
    assert 'aria-label="time of gappy over L = S"' in gappy
    lines = re.findall('<path d="([^"]*)" clip-path', whole + gappy)
    assert sum(line.count("M ") == 2 for line in lines) == 1


def test_names_cannot_become_markup() -> None:
    hostile = "<script>alert(1)</script>"
    quoted = "a \"b\" 'c'.py:SPEC"
    page = render(
        [record(), *(record(hostile, n, n * 1e-5) for n in (64, 128, 256)), record(quoted)],
        outcomes=[
            {"subject": hostile, "invariant": hostile, "status": "failed", "reason": hostile}
        ],
        formulas={hostile: (Markup(hostile), Markup(hostile))},
        sources=[quoted],
    )
    assert hostile not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script>") == 1


def test_the_page_needs_no_network() -> None:
    page = render([record(length=n) for n in (64, 128, 256)])
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "attnbench" / "r.jsonl"
    for subject in ("scaled_dot", "additive", "gone"):
        store.append(path, record(subject))
    return path


def test_the_command_writes_a_page_of_what_was_recorded(
    folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = {"subject": "additive", "invariant": "i", "status": "failed", "reason": "off by 3"}
    folder.with_suffix(".checks.json").write_text(json.dumps({"outcomes": [outcome]}))
    assert main(["report", "-o", "page.html"]) == 0
    page = (folder.parents[2] / "page.html").read_text()
    assert "3 records of 1 run." in capsys.readouterr().out
    assert "off by 3" in page


def test_the_command_looks_formulas_up_and_does_without_those_that_are_not_installed(
    folder: Any,
) -> None:
    store.append(folder, record("additive(hidden_size=3)"))
    assert main(["report"]) == 0
    page = (folder.parents[2] / "report.html").read_text()
    assert "<td>w_vᵀ tanh(W_q q + W_k k)<small>Bahdanau et al. 2015" in page
    assert ">additive</th>" in page
    assert "without a formula: gone." in page


def test_a_page_needs_nothing_but_records(
    folder: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(function: Any, **arguments: Any) -> Never:
        raise UsageError("this command needs torch")

    monkeypatch.setattr("attnbench_plugins.page.command.ask", ask)
    assert main(["report"]) == 0
    assert "additive</th>" in (folder.parents[2] / "report.html").read_text()
    assert "without formulas: this command needs torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there are no records at nowhere"),
        (["bad.jsonl"], "bad.jsonl"),
        (["--outcomes", "bad.jsonl"], "has no option --outcomes. Outcomes are read from"),
        (["-o", "results"], "--output results: cannot write this file: Is a directory"),
        (["-o", "bad.jsonl/page.html"], "cannot write this file: Not a directory"),
    ],
)
def test_bad_input_is_one_clear_error(
    folder: Any, capsys: pytest.CaptureFixture[str], arguments: Any, message: Any
) -> None:
    (folder.parents[2] / "bad.jsonl").write_text("{}\n")
    assert main(["report", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_found_out_before_the_work(
    folder: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_work(*arguments: Any, **more: Any) -> Never:
        raise AssertionError("the work began")

    monkeypatch.setattr("attnbench_plugins.page.command._formulas", no_work)
    assert main(["report", "-o", "/dev/null/page.html"]) == 2
    monkeypatch.setattr(Path, "open", _full)
    assert main(["report"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert "No space left on device" in lines[1]
    assert not Path("report.html").exists()


def _full(path: Path, *arguments: Any, **more: Any) -> Any:
    if path.suffix == ".html":
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    return open(path, *arguments, **more)
