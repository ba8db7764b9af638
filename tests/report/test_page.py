import errno
import html
import json
import math
import re
from pathlib import Path
from typing import Any, Never

import pytest
from markupsafe import Markup

from attnbench.benchmark import records as store
from attnbench.benchmark.records import Record
from attnbench.cli import main
from attnbench.errors import UsageError
from attnbench.report import pictures, texts
from attnbench.report.page import render
from attnbench.report.ranking import curves, rows, slope


def record(subject: Any = "scaled_dot", length: Any = 64, time: Any = 1e-3, **changes: Any) -> Any:
    return Record(
        **{
            "run": "r",
            "created": "2026-01-01T00:00:00Z",
            "contract": "forward, warm cache, clock, 1 thread, v1",
            "subject": subject,
            "case": f"L{length}",
            "direction": "forward",
            "dtype": "float32",
            "device": "cpu",
            "device_name": "a processor",
            "status": "ok",
            "workload": f"L=S={length}",
            "q_len": length,
            "kv_len": length,
            "query_size": 8,
            "time_s": time,
            "times_s": (time,) * (time is not None),
            "time_q1_s": time,
            "time_q3_s": time,
            "peak_bytes": 1024,
            "error_ratio": 0.5,
            **changes,
        }
    )


def test_a_row_is_the_median_over_processes_and_its_ratio_is_to_the_baseline_of_its_case() -> None:
    table = rows(
        [record(time=t, run=f"{t}") for t in (1e-3, 2e-3, 9e-3)]
        + [record("slow", time=8e-3, ratio=4.0), record("slow", length=128, time=1.0)]
    )
    by_key = {(row.subject, row.case): row for row in table}
    assert by_key["scaled_dot", "L64"].time_s == 2e-3
    assert by_key["slow", "L64"].ratio == 4.0
    assert by_key["slow", "L128"].ratio is None


@pytest.mark.parametrize(("count", "over"), [(2, "slots"), (3, "processes")])
def test_quartiles_are_over_processes_from_three_on(count: int, over: str) -> None:
    times = (1e-3, 2e-3, 9e-3)[:count]
    (row,) = rows([record(time_q1_s=0.5e-3, times_s=times, time=2e-3)])
    assert row.time_q1_s == (0.5e-3 if over == "slots" else 1.5e-3)


def test_commits_and_machines_are_not_pooled_and_the_newest_is_shown() -> None:
    older = [record(time=1e-3, commit="a"), record("slow", time=4e-3, commit="a")]
    newer = [record(time=2e-3, commit="b", created="2026-02-01T00:00:00Z")]
    other = [record("slow", time=9.0, machine={"cores": 64}, created="2025-01-01T00:00:00Z")]
    by_subject = {row.subject: row for row in rows([*other, *older, *newer])}
    assert by_subject["scaled_dot"].time_s == 2e-3
    assert by_subject["slow"].time_s == 4e-3
    assert by_subject["slow"].ratio is None, "the two times are of two commits"


def test_machines_of_a_cluster_stand_side_by_side_and_are_never_pooled() -> None:
    both = [
        record(subject, time=time, ratio=ratio, machine={"name": name, "cores": 2}, run=name)
        for name, slower in (("north", 1), ("south", 4))
        for subject, time, ratio in (
            ("scaled_dot", 1e-3 * slower, 1.0),
            ("slow", 7e-3 * slower, 7.0 + slower),
        )
    ]
    found = {(row.machine_name, row.subject): row for row in rows(both)}
    assert [found[name, "slow"].time_s for name in ("north", "south")] == [7e-3, 28e-3]
    assert [found[name, "slow"].ratio for name in ("north", "south")] == [8.0, 11.0]
    page = html.unescape(re.sub(r"<[^>]+>", " ", render(both)))
    text = " ".join(page.split())
    assert "north a processor south a processor" in text
    assert "slow L=S=64 forward, float32, mask none, cpu 7 ms 8 28 ms 11" in text
    assert "Machines side by side" not in render(both[:2])


def test_terminal_and_page_show_the_same_numbers_of_the_same_records() -> None:
    from attnbench.report.record_tables import ranking

    unpaired = [
        record("dot", time=t, run=f"{t}", peak_bytes=2**20 * p, error_ratio=e)
        for t, p, e in [(1e-3, 4, 0.9), (3e-3, 1, 0.2)]
    ]
    paired = [
        record("scaled_dot", ratio=1.0, time=2e-3, times_s=(2e-3,) * 3),
        record("additive", ratio=4.0, gain=None, time=9e-3, times_s=(9e-3,) * 3),
        record("additive/factorised", ratio=3.0, gain=1.3, time=9.5e-3, times_s=(9e-3,) * 3),
        record("wrong", status="unverified", reason="off"),
    ]
    for records in (unpaired, paired):
        shown = [line for table in ranking(records).values() for line in table]
        table = rows(records)
        assert [line["subject"] for line in shown] == [row.subject for row in table]
        for line, row in zip(shown, table, strict=True):
            assert line["× scaled_dot"] == row.ratio
            assert line["peak_MiB"] == (row.peak_bytes or 0) / 2**20
            assert (line["error"], line["status"]) == (row.error_ratio, row.status)
            assert (line["gain"], line["processes"]) == (row.gain, row.processes)
    (row,) = rows(unpaired)
    assert (row.time_s, row.peak_bytes, row.error_ratio) == (2e-3, 4 * 2**20, 0.9)
    names = [row.subject for row in rows(paired)]
    assert names == ["scaled_dot", "additive/factorised", "additive", "wrong"]  # by measured ratio


def test_contracts_and_devices_are_never_compared() -> None:
    table = rows(
        [record(), record("slow", contract="another"), record("far", device_name="another")]
    )
    assert [row.ratio for row in table if row.subject != "scaled_dot"] == [None, None]


def test_what_is_not_ok_has_no_time_and_no_place() -> None:
    (row,) = rows([record(status="unverified", reason="wrong")])
    assert (row.time_s, row.ranked, row.processes, row.reason) == (None, None, 0, "wrong")


def test_slope_of_a_quadratic_is_two() -> None:
    assert slope([(n, 3e-9 * n**2) for n in (64, 256, 1024)]) == pytest.approx(2.0)


def test_curves_need_two_lengths_and_have_a_bar_between_the_quartiles_at_each() -> None:
    records = [record(length=n, time=n * 1e-6, time_q3_s=1e-3) for n in (64, 128)]
    ((title, family),) = curves(rows([*records, record("few")])).items()
    assert [curve.subject for curve in family] == ["scaled_dot"]
    assert family[0].bars == ((64, 64e-6, 1e-3), (128, 128e-6, 1e-3))
    assert family[0].slope == pytest.approx(1.0)
    assert "mask none" in title


@pytest.mark.parametrize("status", ["unverified", "unsupported", None])
def test_a_curve_is_dashed_across_a_length_without_a_valid_time_and_only_there(status: Any) -> None:
    records = [
        record(name, length=n, time=n * 1e-6)
        for name in ("scaled_dot", "gappy")
        for n in (64, 128, 256, 512)
        if (name, n) != ("gappy", 128)
    ]
    if status:
        records.append(record("gappy", 128, 1e-3, status=status))
    (family,) = curves(rows(records)).values()
    found = {curve.subject: pictures.gaps(curve.points, curve.lengths) for curve in family}
    assert found == {"scaled_dot": [False, False, False], "gappy": [True, False]}
    page = render(records)
    assert 'aria-label="time of gappy over L = S"' in page
    assert page.count("stroke-dasharray") == 1
    assert "A line is dashed across\na length that lacks a valid time" in page


def test_a_curve_is_dashed_across_a_length_that_was_wrong_for_every_subject() -> None:
    records = [record(length=n, time=n * 1e-6) for n in (64, 256, 512)]
    page = render([*records, record(length=128, status="unverified")])
    assert page.count("stroke-dasharray") == 2  # of the baseline and of its own line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "–"), (1.5, "1.5 s"), (2.346e-3, "2.35 ms"), (1e-6, "1 µs"), (3e-9, "3 ns")],
)
def test_times_have_a_unit(seconds: Any, text: Any) -> None:
    assert texts.seconds_text(seconds) == text


def test_names_cannot_become_markup() -> None:
    hostile = "<script>alert(1)</script>"
    quoted = "a \"b\" 'c'.py:SPEC"
    page = render(
        [record(), *(record(hostile, n, n * 1e-5) for n in (64, 128, 256)), record(quoted)],
        outcomes=[
            {"subject": hostile, "invariant": hostile, "status": "failed", "reason": hostile}
        ],
        heat_maps={hostile: [[0.5, 0.5]]},
        formulas={hostile: (Markup(hostile), Markup(hostile))},
        title=hostile,
        sources=[quoted],
    )
    assert hostile not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script>") == 1


def test_subjects_that_share_a_formula_share_its_line_and_those_without_one_are_named() -> None:
    formulas = dict.fromkeys(["dot/fused", "dot"], ("qᵀk", "Luong")) | {"two": ("q < k", "")}
    page = render([record(name) for name in ("dot", "dot/fused", "two", "gone")], formulas=formulas)
    (section,) = re.findall('<section id="formulas">(.*?)</section>', page, re.S)
    section = section.replace("<wbr>", "")
    lines = re.findall("<tr><th.*?>(.*?)</th><td>(.*?)<small>(.*?)</small>", section)
    assert lines == [("dot, dot/fused", "qᵀk", "Luong"), ("two", "q &lt; k", "")]
    assert "without a formula: gone." in section
    assert 'href="#formulas"' not in render([record()])


def test_the_page_needs_no_network() -> None:
    page = render([record(length=n) for n in (64, 128, 256)])
    assert not re.findall(r'(?:src|href)="(?!#)', page)
    assert "@import" not in page
    assert not re.findall(r"url\((?!#)", page)


def test_every_status_and_contract_that_occurs_is_explained() -> None:
    page = render([record(), record("x", status="out_of_memory", reason="needs 9 GiB")])
    assert "the case does not fit in this machine" in page
    assert "forward, warm cache, clock, 1 thread, v1" in page


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "results" / "attnbench" / "r.jsonl"
    for subject in ("scaled_dot", "additive", "gone"):
        store.append(path, record(subject))
    return path


def test_the_command_writes_a_page_of_what_was_recorded_with_heat_maps(
    folder: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = {"subject": "additive", "invariant": "i", "status": "failed", "reason": "off by 3"}
    folder.with_suffix(".checks.json").write_text(json.dumps({"outcomes": [outcome]}))
    assert main(["report", "-o", "sub/page.html"]) == 0
    page = (folder.parents[2] / "sub" / "page.html").read_text()
    assert "3 records of 1 run." in capsys.readouterr().out
    assert "off by 3" in page
    assert "weights of additive" in page
    assert "weights of gone" not in page


def test_the_command_looks_formulas_up_and_does_without_those_that_are_not_installed(
    folder: Any,
) -> None:
    store.append(folder, record("additive(hidden_size=3)"))
    assert main(["report", "--no-heat-maps"]) == 0
    page = (folder.parents[2] / "report.html").read_text()
    assert "<td>w_vᵀ tanh(W_q q + W_k k)<small>Bahdanau et al. 2015" in page
    assert "additive, additive(<wbr>hidden_<wbr>size=3)</th>" in page
    assert "without a formula: gone." in page


def test_a_page_needs_nothing_but_records(
    folder: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(function: Any, **arguments: Any) -> Never:
        raise UsageError("this command needs torch")

    monkeypatch.setattr("attnbench.cli.report.ask", ask)
    assert main(["report", "--no-heat-maps"]) == 0
    assert "additive</th>" in (folder.parents[2] / "report.html").read_text()
    assert "without formulas: this command needs torch" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "maps", "warns"), [("1 / 0", True, False), ("import os; os._exit(7)", False, True)]
)
def test_a_recorded_subject_that_breaks_on_import_costs_the_page_only_heat_maps(
    folder: Any, capsys: pytest.CaptureFixture[str], code: Any, maps: Any, warns: Any
) -> None:
    (folder.parents[2] / "broken.py").write_text(code)
    store.append(folder, record("broken.py:SPEC"))
    assert main(["report"]) == 0
    page = (folder.parents[2] / "report.html").read_text()
    assert "broken.py:SPEC" in page
    assert ("weights of additive" in page) == maps
    assert ("the page is without heat maps: heat maps: " in capsys.readouterr().err) == warns


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there are no records at nowhere"),
        (["bad.jsonl"], "bad.jsonl"),
        (["--outcomes", "bad.jsonl"], "holds no outcomes"),
        (["-o", "results"], "--output results: this is a folder"),
        (["-o", "bad.jsonl/page.html"], "cannot make the folder bad.jsonl: "),
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

    monkeypatch.setattr("attnbench.cli.report._formulas", no_work)
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


def test_the_page_shows_the_interval_of_a_ratio() -> None:
    paired = {"ratio": 4.0, "ratio_low": 3.75, "ratio_high": 4.25}
    page = render([record(), record("additive", time=4e-3, **paired)])
    assert "4<small>3.75 – 4.25</small>" in page


def test_the_interval_of_several_runs_reaches_over_those_of_each() -> None:
    (row,) = rows(
        [
            record("additive", ratio=4.0, ratio_low=3.5, ratio_high=4.5, run="a"),
            record("additive", ratio=5.0, ratio_low=4.0, ratio_high=6.0, run="b"),
        ]
    )
    assert (row.ratio, row.ratio_low, row.ratio_high) == (4.5, 3.5, 6.0)


def test_nan_in_one_heat_map_is_said_and_leaves_the_scale_of_the_others() -> None:
    maps = {"right": [[0.25, 0.5]], "broken": [[math.nan, 0.0]], "none": [[0.0, 0.0]]}
    page = render([record()], heat_maps=maps)
    assert "Full colour is a weight of 0.50" in page
    assert "have the other colour: broken." in page
    assert page.count("fill: var(--bad)") == 1
    assert "nan" not in page.partition('<section id="weights">')[2].partition("</section>")[0]
    plain = render([record()], heat_maps={"right": [[0.25, 0.5]]})
    assert "the other colour" not in plain
    assert pictures.heat_map("x", [[0.0]], 0.0).startswith("<svg")


def layer_record(subject: Any, direction: Any, length: Any = 64, **changes: Any) -> Any:
    q_len = 1 if direction == "decode" else length
    return record(
        subject,
        length,
        **{
            "kind": "layer",
            "direction": direction,
            "contract": f"{direction}, warm cache, clock, 1 thread, v1",
            "case": f"{direction} {length}",
            "workload": f"B=2 S={length}",
            "lead": (2,),
            "q_len": q_len,
            "tokens_per_s": 2 * q_len / 1e-3,
            "cache_bytes_per_token": 256.0 if direction == "decode" else None,
            **changes,
        },
    )


def test_a_row_that_failed_stands_under_the_baseline_of_the_others() -> None:
    from attnbench.report.record_tables import ranking

    failed = record("wrong", status="failed", reason="off", baseline="")
    (table,) = ranking([failed, record("mine", ratio=2.0, baseline="other")]).values()
    assert [line["× other"] for line in table] == [2.0, None]


def test_layers_have_their_speed_and_a_baseline_of_their_own() -> None:
    layers = [
        layer_record(name, direction, length, time=length * factor * 1e-5, ratio=float(factor))
        for name, factor in (("causal_attention", 1), ("mine", 3))
        for direction in ("prefill", "decode")
        for length in (64, 128, 256)
    ]
    table = rows([record(), record("dot"), *layers])
    ratios = {r.direction: r.ratio for r in table if r.subject == "mine"}
    assert ratios == {"prefill": pytest.approx(3.0), "decode": pytest.approx(3.0)}
    found = {c.subject: c for family in curves(table).values() for c in family}
    assert found["mine"].slope == pytest.approx(1.0)
    assert found["mine"].baseline == found["causal_attention"].points
    page = render([record(), record("dot"), *layers])
    assert "cache 256 B a token" in page
    assert "128,000 tokens/s" in page
    assert "layers causal_attention" in page


def test_pictures_come_before_tables_and_each_cell_of_a_card_has_its_name() -> None:
    names = ("scaled_dot", "dot", "additive")
    page = render(
        [record(name, length, length * 1e-5) for name in names for length in (64, 128, 256)],
        outcomes=[
            {"subject": "dot", "invariant": "layouts_agree", "status": "failed", "reason": "no"}
        ],
    )
    sections = ("scaling", "memory", "properties")
    places = [page.index(f'<section id="{name}">') for name in sections]
    assert places == sorted(places) < [page.index('id="measurements"')] * 3
    assert '<i class="failed" title="layouts_agree on dot: failed"></i>' in page
    assert page.count('<a href="#properties">1 property not met</a>') == 3
    body = page.partition('<table id="table">')[2].partition("</table>")[0]
    labels = re.findall(
        '<td data-label="([^"]*)"', body.partition("</tr>")[2].partition("</tr>")[0]
    )
    assert labels == [
        "case",
        "time",
        "× scaled_dot",
        "peak memory",
        "error / allowed",
        "status",
    ]


def test_a_page_without_layers_does_not_speak_of_them() -> None:
    page = render([record(), record("dot")])
    assert "causal_attention" not in page
    assert "<h3>Layers</h3>" not in page


def test_each_number_stands_in_one_table_and_a_kernel_says_what_it_gains() -> None:
    quick = record("slow/quick", kind="kernel", ratio=0.537, gain=4.0)
    page = render([record(), record("slow", ratio=2.0), quick])
    assert page.count(">0.537<") == 1
    assert "<small>4 times faster than slow</small>" in page


def test_names_of_close_points_stand_side_by_side() -> None:
    points = [("average", 1.57e-3, 4 << 20), ("scaled_dot", 1.65e-3, 4 << 20)]
    picture = pictures.scatter("time against memory", [*points, ("$a$", 44e-3, 64 << 20)])
    found = re.findall(r'y="([\d.]+)"[^>]*>([^<]+)</text>', picture)
    places = {name: float(y) for y, name in found}
    assert {"average", "scaled_dot", "$a$"} <= {*places}
    assert abs(places["average"] - places["scaled_dot"]) > 10
