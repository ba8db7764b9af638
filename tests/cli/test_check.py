"""What check finds and shows, as tables, JSON and JUnit."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from xml.etree import ElementTree

import attnbench
from attnbench.checking.plan import all_targets
from attnbench.cli.options import as_typed
from attnbench.registry.address import parse_address
from tests.cli_runs import SUM, outcome, run, started


def test_check_shows_one_line_a_subject_and_each_outcome_if_it_is_asked_for() -> None:
    arguments = (*SUM, "--invariant", "bounded_by_one")
    result = run("check", "scaled_dot", "additive", *arguments)
    assert (result.code, result.err) == (0, "")
    rows = [" ".join(line.split()) for line in result.out.splitlines()]
    for name, row in zip(("additive", "scaled_dot"), sorted(rows[:2]), strict=True):
        assert row.startswith(f"{name} 1 property holds, 1 does not apply ")
    assert rows[2].startswith("2 passed, 2 skipped in ")
    assert rows[-1].startswith("Next: attnbench check scaled_dot additive --profile default")
    whole = run("check", "scaled_dot", *arguments, "--verbose").out
    assert "scheduled, 4 drawn" in whole
    assert "law not declared" in whole


def test_a_dtype_that_is_asked_for_is_the_only_one() -> None:
    arguments = ("--invariant", "keeps_the_contract", "--profile", "quick", "--json")
    half = run("check", "bad_subjects.py:HALF_NAN", *arguments, "--dtype", "float16")
    full = run("check", "bad_subjects.py:HALF_NAN", *arguments, "--dtype", "float32")
    assert (half.code, full.code) == (1, 0)
    assert "-float16-" in half.json["outcomes"][0]["failure"]["case"]


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


def test_a_check_may_stop_at_the_first_failure() -> None:
    result = run(
        "check", "bad_subjects.py:HALF_NAN", "--profile", "quick", "--fail-fast", "-j", "1"
    )
    assert result.code == 1
    assert "stopped at the first failure (--fail-fast)" in result.out
    assert result.out.count("FAILED") == 1


def test_each_way_to_break_the_contract_has_an_outcome_with_the_values() -> None:
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


def test_without_a_usable_answer_one_outcome_fails_and_the_rest_are_not_run() -> None:
    result = run("check", "bad_subjects.py:SHAPE", "--profile", "quick", "--json")
    assert result.code == 1
    assert result.json["counts"]["failed"] == 1
    assert set(result.json["counts"]) == {"failed", "skipped"}
    assert outcome(result, "WrongShape")["reason"].startswith("not run: keeps_the_contract failed")


def test_a_failure_is_shown_whole_and_its_cause_once() -> None:
    arguments = ("-j", "1", *SUM, "--invariant", "pools_values")
    result = run("check", "bad_subjects.py:RAISES", *arguments)
    assert result.code == 1
    assert "FAILED RaisesForOneQuery: weights_sum_to_one" in result.out
    assert "property: " in result.out
    assert "smallest counterexample: leading sizes none, L=1" in result.out
    assert result.out.count("IndexError: too few queries") < 3
    assert "also raises" not in result.out
    assert "RaisesForOneQuery  1 property holds, 1 fails" in result.out
    assert "other properties in calls that raise IndexError at bad_subjects.py:" in result.out
    assert "Traceback" not in result.out


def test_junit_has_a_suite_a_subject_and_tells_failures_from_crashes(tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    targets = ("scaled_dot", "bad_subjects.py:SHAPE", "bad_subjects.py:KILLS")
    run("check", *targets, *SUM, "--invariant", "bounded_by_one", "--format", f"junit={path}")
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


def test_quick_leaves_subjects_with_options_to_other_profiles_and_says_so() -> None:
    names = [name for name in attnbench.subjects() if name.partition("(")[0] == "static"]
    assert names == ["static", "static(scoring=scaled_dot)"]
    assert set(names) <= set(map(str, all_targets("default")))
    assert set(names) & set(map(str, all_targets("quick"))) == {"static"}
    law = ("--invariant", "bounded_by_one")
    result = run("check", *law, "--profile", "quick")
    assert "more subjects, which have options" in result.out.splitlines()[-2]
    assert "more subjects" not in run("check", *law, "static(scoring=scaled_dot)").out
    assert "--profile default" not in run("check", *law, "dot", "--profile", "default").out


def test_where_everything_is_skipped_nothing_is_known() -> None:
    result = run("check", "dot", "--invariant", "scale_multiplies_scores", "--json")
    assert (result.json["counts"], result.json["ok"], result.code) == ({"skipped": 1}, False, 4)


def test_outcomes_are_shown_as_they_come_and_failures_at_once() -> None:
    targets = ("bad_subjects.py:SHAPE", "bad_subjects.py:HANGS")
    with started("check", *targets, *SUM, "-j", "2") as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        explained = next(line for line in lines if line.startswith("FAILED"))
        assert any("counterexample" in line for line in lines)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.communicate(timeout=60)[0]
    assert explained.startswith("FAILED WrongShape: weights_sum_to_one")
    assert "1 failed" in rest


def test_a_file_for_junit_that_cannot_be_written_is_one_line_and_loses_nothing() -> None:
    result = run("check", "dot", *SUM, "--format", "junit=/dev/full")
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert result.err.startswith("attnbench: --format junit /dev/full: ")
    assert "1 passed" in result.out


def test_a_call_describes_the_style_of_an_address(tmp_path: Path) -> None:
    source = "def f(mine, k, v):\n    return (mine @ k.mT * k.shape[-1] ** -0.5).softmax(-1) @ v\n"
    (tmp_path / "mine.py").write_text(source)
    call = ("--call", "f(mine=query, k=key, v=value)")
    arguments = ("--invariant", "output_lies_within_values")
    result = run("check", f"{tmp_path}/mine.py:f as sdpa", *call, *arguments)
    assert result.code == 0, result.out + result.err


def test_a_printed_case_runs_again_alone() -> None:
    case = "b2-L2-S3-Eq4-Ek4-Ev4-float32-cpu-none-contiguous-normal-s0"
    result = run("check", "dot", "--invariant", "weights_sum_to_one", "--case", case, "--json")
    (outcome,) = json.loads(result.out)["outcomes"]
    assert (outcome["status"], outcome["cases"]) == ("passed", 1)
    wrong = run("check", "dot", "--invariant", "weights_sum_to_one", "--case", "b2")
    assert wrong.code == 2
    assert "b2" in wrong.err
    other = case.replace("Ek4", "Ek5")
    unfit = run("check", "dot", "--invariant", "weights_sum_to_one", "--case", other, "-v")
    assert f"not legal for dot; the nearest legal case is {case}" in unfit.out


UNFILLED = """
from torch import nn

class Attention(nn.Module):
    def __init__(self, dim, spam):
        super().__init__()
        if not isinstance(spam, dict):
            raise TypeError("no spam")
        self.proj = nn.Linear(dim, dim)
    def forward(self, x):
        return (self.proj(x) @ x.mT).softmax(-1) @ x
"""


def test_a_constructor_that_cannot_be_filled_is_two_lines_and_what_is_offered_is_said_again(
    tmp_path: Path,
) -> None:
    (tmp_path / "unfilled.py").write_text(UNFILLED)
    target = f"{tmp_path}/unfilled.py:Attention"
    refused = run("check", target)
    assert (refused.code, refused.out) == (2, "")
    assert len(refused.err.splitlines()) == 2, refused.err
    assert '--make "Attention(dim=E, spam=...)"' in refused.err
    made = run("check", target, "--make", "Attention(E, {})", "--invariant", "keeps_the_contract")
    assert made.code == 0, made.err
    assert f"Next: attnbench check '{target} made Attention(E, {{}})' --profile" in made.out


def test_a_target_with_spaces_stays_quoted_in_what_is_offered() -> None:
    target = "unfilled.py:Attention made Attention(E, {})"
    assert as_typed([target], [parse_address(target)]) == [f"'{target}'"]
