"""The first screen of ``attnbench run``: what it says to do next works as it is written."""

from __future__ import annotations

from attnbench.checking.outcomes import Outcome
from attnbench.cli.printing.first_screen_content import content
from tests.report.test_page import record


def test_the_command_that_checks_a_subject_of_a_file_names_the_file() -> None:
    failed = Outcome("cosine", "weights_sum_to_one", "failed", cases=1)
    told = content(
        [record("cosine")],
        [failed],
        {"cosine": ["weights_sum_to_one"]},
        [],
        own_inputs=False,
        addresses={"cosine": "my scores.py:SPEC"},
    )
    command = "attnbench check 'my scores.py:SPEC'"
    assert told["wrong"] == [f"cosine: weights_sum_to_one failed; {command}"]
    assert told["next"] == [command]


def test_a_comparison_with_a_commit_is_offered_only_where_there_is_one() -> None:
    paired = {"baseline": "scaled_dot", "ratio": 2.0}
    more = {"own_inputs": False, "addresses": {"mine": "mine.py:SPEC"}}

    def offered(commit: str) -> str:
        found = content([record("mine", commit=commit, **paired)], [], {}, [], **more)
        return " ".join(found["next"])

    assert "attnbench compare HEAD mine.py:SPEC" in offered("abc")
    assert "compare" not in offered("")
