"""The command line: exit codes, tables, JSON, and one clear message for each misuse."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import psutil
import pytest

from attnbench import cli
from attnbench.cli import main
from attnbench.cli._exit import exit_code
from attnbench.errors import UsageError

HERE = Path(__file__).parent
SUM = ("--invariant", "weights_sum_to_one", "--profile", "quick")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(HERE)  # where bad_subjects.py is


class Result:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def attnbench(*arguments: str) -> Result:
        capsys.readouterr()
        code = main(arguments)
        return Result(code, *capsys.readouterr())

    return attnbench


def outcome(result: Result, subject: str, invariant: str = "weights_sum_to_one") -> dict[str, Any]:
    (found,) = [
        o for o in result.json["outcomes"] if (o["subject"], o["invariant"]) == (subject, invariant)
    ]
    return dict(found)


@pytest.mark.parametrize(
    ("statuses", "plugin_failed", "code"),
    [
        ((), False, 0),
        (("passed", "skipped", "same", "faster"), False, 0),
        (("passed", "inconclusive"), False, 4),
        (("ambiguous",), False, 4),
        (("inconclusive", "failed"), False, 1),
        (("slower", "ambiguous"), False, 1),
        (("failed", "timeout"), False, 3),
        (("failed", "crashed"), False, 3),
        (("error",), False, 3),
        (("failed",), True, 3),
    ],
)
def test_the_exit_code_is_the_first_that_applies(
    statuses: tuple[str, ...], plugin_failed: bool, code: int
) -> None:
    assert exit_code(statuses, plugin_failed=plugin_failed) == code


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from attnbench.cli import main; main(['--help']);"
        "print([m for m in ('torch', 'pandas', 'hypothesis', 'matplotlib') if m in sys.modules])"
    )
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert text.splitlines()[-1] == "[]"
    for command in cli.COMMANDS:
        assert f" {command} " in text


def test_what_list_does_needs_neither_hypothesis_nor_the_compiler() -> None:
    code = (
        "import sys; from attnbench.cli._inside import loaded_plugins, subject_rows;"
        "case = 'b8-L8-S8-Eq4-Ek4-Ev4-float32-cpu-none-contiguous-normal-s0';"
        "assert min(len(loaded_plugins()), len(subject_rows(None, case))) > 20;"
        "print([m for m in ('hypothesis', 'torch._dynamo') if m in sys.modules])"
    )
    text = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert text.strip() == "[]"


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help(run: Any, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    assert f"attnbench {command}" in result.out


def test_the_version_is_that_of_the_distribution(run: Any) -> None:
    from importlib.metadata import version

    assert run("--version").out.strip() == f"attnbench {version('attnbench')}"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "Did you mean 'check'"),
        (["check", "--profil", "quick"], "No such option"),
        (["check", "--jobs", "many"], "Invalid value for '-j'"),
        (["check", "scaled_dt"], "Did you mean 'scaled_dot'"),
        (["check", "scaled_dot(x=1)"], "has no option 'x'"),
        (["check", "scaled_dot(x="], "cannot read the address"),
        (["check", "no_such_file.py:SPEC"], "there is no file 'no_such_file.py'"),
        (["check", "bad_subjects.py:RIHGT"], "Did you mean 'RIGHT'"),
        (["check", "scaled_dot", "--invariant", "weight_sum"], "Did you mean 'weights_sum_to_one'"),
        (["check", "scaled_dot", "--profile", "quik"], "Did you mean 'quick'"),
        (["check", "scaled_dot", "--dtype", "float3"], "Did you mean 'float32'"),
        (["check", "scaled_dot", "--device", "warp"], "no device 'warp'"),
        (["check", "scaled_dot", "--junit", "no/folder/x.xml"], "there is no folder"),
        (["list", "scaled_dt"], "Did you mean 'scaled_dot'"),
        (["list", "--case", "tiny"], "is not the id of a case"),
        (["heatmap", "scaled_dt"], "Did you mean 'scaled_dot'"),
        (["heatmap", "-o", "x.txt"], "a picture ends in .png, .svg or .pdf"),
        (["heatmap", "--inputs", "none.safetensors"], "there is no file 'none.safetensors'"),
        (["heatmap", "--item", "first", "-o", "x.png"], "write indices"),
        (["heatmap", "scaled_dot", "--item", "7", "-o", "x.png"], "there is no item [7]"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_message_and_exit_code_2(
    run: Any, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert result.code == 2
    assert message in " ".join(result.err.replace("│", " ").split())
    assert "Traceback" not in result.err
    assert result.out == ""


def test_plugins_reads_metadata_only(run: Any) -> None:
    rows = run("plugins", "--json").json
    assert {"additive", "scaled_dot"} <= {row["plugin"] for row in rows}
    assert {row["status"] for row in rows} == {"found"}
    assert {row["distribution"] for row in rows} == {"attnbench"}


def test_plugins_load_says_what_each_brings(run: Any) -> None:
    result = run("plugins", "--load", "--json")
    rows = {row["plugin"]: row for row in result.json}
    assert result.code == 0
    assert rows["scaled_dot"]["status"] == "ok"
    assert rows["scaled_dot"]["brings"] == ["scaled_dot"]


def test_a_blocked_plugin_is_shown_as_blocked_and_its_subject_is_gone(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNBENCH_DISABLED_PLUGINS", "dot")
    rows = {row["plugin"]: row for row in run("plugins", "--load", "--json").json}
    assert (rows["dot"]["status"], rows["scaled_dot"]["status"]) == ("blocked", "ok")
    gone = run("check", "dot")
    assert gone.code == 2
    assert "dot (blocked)" in gone.err


def test_list_shows_each_subject_with_its_formula_and_kernels(run: Any) -> None:
    rows = {row["subject"]: row for row in run("list", "--json").json}
    assert rows["scaled_dot"]["kind"] == "scoring"
    assert rows["scaled_dot"]["formula"] == "qᵀk / √E"
    assert rows["multi_head"]["kind"] == "mechanism"
    shown = run("list", "scaled_dot").out
    assert "query_size == key_size" in shown
    assert "plain" in shown.splitlines()[-1]


def test_check_shows_each_outcome_of_one_subject(run: Any) -> None:
    arguments = ("scaled_dot", *SUM, "--invariant", "bounded_by_one")
    result = run("check", *arguments)
    assert result.code == 0
    assert "scheduled, 25 drawn" in result.out
    assert "law not declared" not in result.out
    assert "law not declared" in run("check", *arguments, "--verbose").out
    assert result.out.splitlines()[-1] == "1 passed, 1 skipped"
    assert result.err == ""


def test_check_shows_one_row_a_subject_for_several(run: Any) -> None:
    result = run("check", "scaled_dot", "additive", *SUM)
    assert [line.split()[0] for line in result.out.splitlines() if line.endswith("ok ")] == [
        "scaled_dot",
        "additive",
    ]


def test_one_seed_gives_the_same_outcomes_each_time(run: Any) -> None:
    def found() -> tuple[int, list[Any]]:
        result = run("check", "bad_subjects.py:RANDOM", *SUM, "--seed", "3", "--json").json
        return result["seed"], [{**o, "seconds": 0} for o in result["outcomes"]]

    first = found()
    assert first[0] == 3
    assert found() == first


def test_a_dtype_that_is_asked_for_is_the_only_one(run: Any) -> None:
    arguments = ("--invariant", "keeps_the_contract", "--profile", "quick", "--json")
    half = run("check", "bad_subjects.py:HALF_NAN", *arguments, "--dtype", "float16")
    full = run("check", "bad_subjects.py:HALF_NAN", *arguments, "--dtype", "float32")
    assert (half.code, full.code) == (1, 0)
    assert "-float16-" in half.json["outcomes"][0]["counterexample"]


BAD = {
    "TYPE": ("WrongType", "WrongType returned list, but scores are a tensor"),
    "SHAPE": ("WrongShape", "WrongShape returned scores of shape (1,), but query (1, 1)"),
    "DTYPE": ("WrongDtype", "WrongDtype returned scores in torch.int32"),
    "DEVICE": ("WrongDevice", "WrongDevice returned scores on meta, not on cpu"),
    "NAN": ("GivesNan", "GivesNan gives output[0, 0] = nan for finite inputs in float32"),
    "CHANGES": ("ChangesInput", "ChangesInput changes its input: query[0, 0] was 1.541 before"),
    "SIZES": ("NeedsEqualSizes", "NeedsEqualSizes raised on a legal input: RuntimeError"),
    "RAISES": ("RaisesForOneQuery", "IndexError: too few queries for my taste (bad_subjects.py:"),
    "RANDOM": ("Nondeterministic", "answers differently the second time: output[0, 0] ="),
    "LEAVES": ("Leaves", "Leaves raised on a legal input: SystemExit: 3"),
    "NO_TENSOR": ("NoTensor", "NoTensor returned NoneType for its output"),
    "DROPS_LEAD": ("DropsLead", "DropsLead returned output of shape (1, 1) for query (1, 1, 1)"),
    "WIDENS": ("WidensOutput", "WidensOutput returned output in torch.float64, but should"),
}


def test_each_way_to_break_the_contract_has_an_outcome_with_the_values(run: Any) -> None:
    targets = [f"bad_subjects.py:{name}" for name in BAD]
    arguments = ("--invariant", "keeps_the_contract", "--profile", "quick", "--json")
    result = run("check", *targets, "scaled_dot", *arguments)
    assert result.code == 1
    for subject, message in BAD.values():
        found = outcome(result, subject, "keeps_the_contract")
        assert found["status"] == "failed"
        assert message in found["reason"]
        assert "hypothesis" not in found["reason"]
    assert outcome(result, "scaled_dot", "keeps_the_contract")["status"] == "passed"


def test_without_a_usable_answer_one_outcome_fails_and_the_rest_are_not_run(run: Any) -> None:
    result = run("check", "bad_subjects.py:SHAPE", "--profile", "quick", "--json")
    assert result.code == 1
    assert result.json["counts"]["failed"] == 1
    assert set(result.json["counts"]) == {"failed", "skipped"}
    assert outcome(result, "WrongShape")["reason"].startswith("not run: keeps_the_contract failed")


def test_a_failure_is_shown_whole_and_its_cause_once(run: Any) -> None:
    arguments = ("--profile", "quick", *SUM, "--invariant", "pools_values")
    result = run("check", "bad_subjects.py:RAISES", *arguments)
    assert result.code == 1
    assert "FAILED RaisesForOneQuery: weights_sum_to_one" in result.out
    assert "property: " in result.out
    assert "smallest counterexample: leading sizes none, L=1" in result.out
    assert result.out.count("IndexError: too few queries") < 3
    assert "and for the same reason: pools_values" in result.out
    assert "Traceback" not in result.out


def test_a_subject_that_hangs_timed_out_and_the_others_go_on(run: Any) -> None:
    targets = ("bad_subjects.py:HANGS", "scaled_dot")
    result = run("check", *targets, *SUM, "--timeout", "3", "--json")
    assert result.code == 3
    assert outcome(result, "Hangs")["status"] == "timeout"
    assert "no answer within 3 s" in outcome(result, "Hangs")["reason"]
    assert outcome(result, "scaled_dot")["status"] == "passed"


def test_a_hang_in_one_invariant_keeps_the_outcomes_before_and_after_it(run: Any) -> None:
    names = ("keeps_the_contract", "unit_variance", "weights_are_not_negative")
    chosen = [text for name in names for text in ("--invariant", name)]
    result = run(
        *(
            "check",
            "bad_subjects.py:HANGS_TRAINING",
            *chosen,
            "--invariant",
            "inputs_are_unchanged",
        ),
        *("--profile", "quick", "--timeout", "6", "--json"),
    )
    found = {o["invariant"]: o["status"] for o in result.json["outcomes"]}
    assert found["inputs_are_unchanged"] == "timeout"
    assert found["keeps_the_contract"] == found["weights_are_not_negative"] == "passed"
    assert result.code == 3


def test_a_subject_that_kills_its_process_crashed_and_is_begun_again_once(run: Any) -> None:
    targets = ("bad_subjects.py:KILLS", "scaled_dot")
    names = ("keeps_the_contract", "weights_are_not_negative", "pools_values", "layouts_agree")
    chosen = [text for name in names for text in ("--invariant", name)]
    result = run("check", *targets, *chosen, "--profile", "quick", "--json", "-j", "2")
    assert result.code == 3
    reasons = [o["reason"] for o in result.json["outcomes"] if o["subject"] == "KillsItsProcess"]
    assert [reason.split()[0] for reason in reasons] == ["its", "its", "not", "not"]
    assert "SIGKILL" in reasons[0]
    assert result.json["counts"] == {"passed": 4, "crashed": 4}


def test_a_subject_over_its_memory_crashed_and_says_the_cap(run: Any) -> None:
    result = run("check", "bad_subjects.py:HOARDS", *SUM, "--memory", "0.75", "--json")
    assert result.code == 3
    assert "over the cap of 0.75 GiB" in outcome(result, "Hoards")["reason"]


def test_an_invariant_that_raises_is_an_error_and_no_finding() -> None:
    from attnbench.resolving import resolve
    from attnbench.running import PROFILES, run_invariant
    from attnbench.specs import Invariant

    broken = Invariant(name="broken", check=lambda subject, case: 1 / 0)  # type: ignore[arg-type]
    (subject,) = resolve("bad_subjects.py:RIGHT")
    found = run_invariant(subject, broken, PROFILES["quick"])
    assert found.status == "error"
    assert "the invariant itself raised ZeroDivisionError" in found.reason


def test_junit_has_a_suite_a_subject_and_tells_failures_from_crashes(
    run: Any, tmp_path: Path
) -> None:
    path = tmp_path / "junit.xml"
    targets = ("scaled_dot", "bad_subjects.py:SHAPE", "bad_subjects.py:KILLS")
    run("check", *targets, *SUM, "--invariant", "bounded_by_one", "--junit", str(path))
    suites = {suite.get("name"): suite for suite in ElementTree.parse(path).getroot()}
    counted = {name: [s.get(k) for k in ("tests", "failures", "errors", "skipped")]
               for name, s in suites.items()}  # fmt: skip
    assert counted == {
        "scaled_dot": ["2", "0", "0", "1"],
        "WrongShape": ["2", "1", "0", "1"],
        "KillsItsProcess": ["2", "0", "1", "1"],
    }
    failure = suites["WrongShape"].find("testcase/failure")
    assert failure is not None
    assert "returned scores of shape" in str(failure.text)


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from attnbench.cli import main; sys.exit(main())"
    targets = ["scaled_dot", "bad_subjects.py:HANGS"]
    process = subprocess.Popen(
        [sys.executable, "-c", code, "check", *targets, *SUM, "-j", "1", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=HERE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    yield process
    process.kill()
    process.communicate()


def test_ctrl_c_keeps_what_was_recorded_and_leaves_no_process(
    hanging: subprocess.Popen[str],
) -> None:
    parent = psutil.Process(hanging.pid)
    until = time.monotonic() + 60
    # the second subject's process hangs: the server's second child after the three that survey
    while time.monotonic() < until and not _sleeps(parent):
        time.sleep(0.1)
    children = parent.children(recursive=True)
    started = time.monotonic()
    hanging.send_signal(signal.SIGINT)
    out, err = hanging.communicate(timeout=30)
    took = time.monotonic() - started
    assert hanging.returncode == 130, err
    assert [o["subject"] for o in json.loads(out)["outcomes"]] == ["scaled_dot"]
    assert "Traceback" not in err
    assert took < 10  # 2 s on an idle machine; a hang would be for 60
    _, alive = psutil.wait_procs(children, timeout=5)
    assert alive == []


def _sleeps(parent: psutil.Process) -> bool:
    """Whether a worker has been asleep for a while: the subject that hangs."""
    workers = [c for child in parent.children() for c in child.children()]
    times = [w.cpu_times().user for w in workers]
    time.sleep(1.5)
    try:
        return bool(workers) and [w.cpu_times().user for w in workers] == times
    except psutil.NoSuchProcess:
        return False


def test_heatmap_draws_the_weights_of_several_subjects(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights.png"
    result = run("heatmap", "additive", "scaled_dot", "-o", str(path), "--json")
    assert result.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    weights = result.json["weights"]
    assert list(weights) == ["additive", "scaled_dot"]
    for rows in weights.values():
        assert (len(rows), len(rows[0])) == (2, 10)
        assert all(abs(sum(row) - 1) < 1e-5 for row in rows)


def test_heatmap_takes_saved_inputs_with_their_mask(run: Any, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    mask = torch.ones(2, 3, 4, 5, dtype=torch.bool)
    mask[..., 4] = False
    tensors = {
        name: torch.randn(2, 3, n, 6) for name, n in (("query", 4), ("key", 5), ("value", 5))
    }
    save_file({**tensors, "attn_mask": mask}, tmp_path / "saved.safetensors")
    arguments = ("--inputs", str(tmp_path / "saved.safetensors"), "--item", "1,2")
    result = run("heatmap", "scaled_dot", *arguments, "-o", str(tmp_path / "x.svg"), "--json")
    assert result.code == 0
    rows = result.json["weights"]["scaled_dot"]
    assert (len(rows), len(rows[0])) == (4, 5)
    assert all(row[4] == 0.0 for row in rows)


def test_heatmap_leaves_out_a_subject_that_fails(run: Any, tmp_path: Path) -> None:
    arguments = ("-o", str(tmp_path / "x.png"))
    result = run("heatmap", "scaled_dot", "bad_subjects.py:KILLS", *arguments)
    assert result.code == 3
    assert "bad_subjects.py:KILLS is left out: its process was ended by SIGKILL" in result.err
    assert "scaled_dot" in result.out


def test_an_error_of_attnbench_in_any_command_is_its_message_alone(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from attnbench.cli import plugins

    def complain() -> None:
        raise UsageError("what, where, got and expected")

    monkeypatch.setattr(plugins, "_found", complain)
    result = run("plugins")
    assert (result.code, result.err) == (2, "attnbench: what, where, got and expected\n")


def test_check_tells_subjects_of_one_name_apart(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("from bad_subjects import RIGHT\n")
    same = f"{path}:RIGHT"
    result = run("check", same, "bad_subjects.py:RIGHT", *SUM, "--json")
    name = result.json["outcomes"][0]["subject"].partition(" of ")[0]
    found = [o["subject"] for o in result.json["outcomes"]]
    assert found == [f"{name} of {same}", f"{name} of bad_subjects.py:RIGHT"]
