"""A first failure comes with a script that shows it in a clean process, where outputs differ."""

from __future__ import annotations

import textwrap
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from attnbench_zoo.patches import TWINS, apply, rows, source_of

import attnbench
from attnbench.checking.outcomes import Outcome
from tests.cli_runs import python

USERS_FILE = textwrap.dedent(
    '''
    """A plugin that is not installed."""

    import attnbench
    import torch
    from torch import nn


    class Cosine(nn.Module):
        """Cosine of query and key."""

        def forward(self, query, key):
            {body}


    SPEC = attnbench.ScoringSpec(
        name="cosine",
        make=lambda query_size, key_size: Cosine(),
        equal_sizes=True,
        reference=lambda module, q, k: sum(a * b for a, b in zip(q, k)),
    )
    '''
)
DOT = "query @ key.mT"


def first_failure(folder: Path, text: str, invariant: str) -> Outcome:
    (folder / "mine.py").write_text(text)
    options = {"profile": "quick", "invariants": [invariant]}
    (outcome,) = attnbench.check(f"{folder / 'mine.py'}:SPEC", **options).of("failed")
    return outcome


def run(folder: Path, script: str | None) -> CompletedProcess[str]:
    assert script is not None
    (folder / "reproduce.py").write_text(script)
    return python(folder / "reproduce.py")


@pytest.mark.parametrize(
    ("text", "invariant", "shown"),
    [
        (
            USERS_FILE.format(body=f"return ({DOT}).softmax(-2)"),
            "query_alone_equals_query_among_others",
            "AssertionError",
        ),
        (USERS_FILE.format(body="raise KeyError('weights')"), "keeps_the_contract", "KeyError"),
    ],
)
def test_the_script_fails_in_a_clean_process_as_the_check_did(
    tmp_path: Path, text: str, invariant: str, shown: str
) -> None:
    done = run(tmp_path, first_failure(tmp_path, text, invariant).reproduce)
    assert done.returncode == 1
    assert shown in done.stderr.splitlines()[-1]


def test_the_script_of_a_cache_has_the_calls_that_fail_and_passes_once_they_are_right(
    tmp_path: Path,
) -> None:
    row = rows()["steps_forget_the_past"]
    end = f"\nSPEC = {TWINS[row.twin].name}\n"
    wrong, right = (text + end for text in (apply(row, source_of(row)).text, source_of(row)))
    script = first_failure(tmp_path, wrong, "calls_may_be_cut_anywhere").reproduce
    assert script is not None
    assert "import attnbench" not in script
    assert script.count("= module") - script.count(".eval()") == 3  # chunks, one call on all
    assert script.count("cache.new(") == 1
    done = run(tmp_path, script)
    assert done.returncode == 1
    assert "AssertionError" in done.stderr.splitlines()[-1]
    (tmp_path / "mine.py").write_text(right)
    assert run(tmp_path, script).returncode == 0


def test_what_compares_no_outputs_has_a_command_that_runs_the_case_again(tmp_path: Path) -> None:
    text = USERS_FILE.format(body="return query @ (2 * key - key.detach()).mT")
    outcome = first_failure(tmp_path, text, "gradients_are_right")
    assert outcome.failure is not None
    assert outcome.failure.script is None


def test_one_failure_of_a_subject_has_a_script(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(USERS_FILE.format(body=f"return ({DOT}).softmax(-2)"))
    names = ["query_alone_equals_query_among_others", "decode_equals_prefill"]
    options = {"profile": "quick", "invariants": names}
    failed = attnbench.check(f"{tmp_path / 'mine.py'}:SPEC", **options).of("failed")
    assert len(failed) == 2
    assert sum(outcome.reproduce is not None for outcome in failed) == 1


def test_a_file_that_checks_its_code_when_it_is_imported_writes_no_script_within_one(
    tmp_path: Path,
) -> None:
    text = USERS_FILE.format(body=f"return ({DOT}).softmax(-2)")
    check = "attnbench.check(SPEC, profile='quick', invariants=['decode_equals_prefill'])"
    seen = tmp_path / "scripts.txt"
    note = f"with open({str(seen)!r}, 'a') as seen: print(outcome.reproduce is not None, file=seen)"
    lines = ("import attnbench", text, f"(outcome,) = {check}.of('failed')", note)
    outcome = first_failure(tmp_path, "\n".join(lines), "decode_equals_prefill")
    assert outcome.reproduce is not None
    assert seen.read_text().split()[:2] == ["False", "True"]  # in a script, and where it is read
