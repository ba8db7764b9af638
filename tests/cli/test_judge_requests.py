"""Requests of ``attnbench judge -``: a bad one gets an answer, and the next one is judged."""

import io
import json
import sys
from typing import Any

import pytest

from attnbench.checking.outcomes import Outcome
from attnbench.cli import plugin_loading
from attnbench.cli.judge import _properties, _serve
from attnbench.errors import AttnbenchError
from attnbench.judging.court import Court
from attnbench.judging.decision import Judgement
from attnbench.judging.entry import Limits
from attnbench.registry import discovery


class Easygoing:
    """A court that accepts whatever it is asked about."""

    def judge(self, target: str, **given: Any) -> Judgement:
        """Accept; names of invariants are looked up, as a court does."""
        known = {name: name for name in given.get("invariants", ())}
        return Judgement(target, "accepted", untried=tuple(known))


BAD = {
    "nonsense": "Expecting value",
    "[1]": "a request is",
    '{"target": 5}': "a request is",
    '{"target": "x", "colour": 1}': "a request has no 'colour', but conventions,",
    '{"target": "x", "seed": "1"}': 'seed is "1", but should be of type int',
    '{"target": "x", "invariants": [[5]]}': "unhashable",
    '{"target": "x", "conventions": 3}': "conventions is 3, but should be of type dict",
}


@pytest.mark.parametrize("line", BAD)
def test_a_bad_request_ends_nothing(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    good = json.dumps({"target": "\ud800.py"})
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{line}\n\n{good}\n"))
    assert _serve(Easygoing(), {}) == 0
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert BAD[line] in first["error"]
    assert second["ok"]


def test_an_unknown_profile_is_told_before_anything_is_judged() -> None:
    with Court(Limits()) as court, pytest.raises(AttnbenchError, match="no profile is called"):
        court.judge("torch.nn.functional:scaled_dot_product_attention", profile="none")


def test_built_in_plugins_alone_are_loaded_in_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    built_in = [p for p in discovery.discover() if p.distribution == "attnbench"]
    monkeypatch.setattr(discovery, "discover", lambda: built_in)
    monkeypatch.setattr(plugin_loading, "load_plugins", lambda: pytest.fail("a child was asked"))
    plugin_loading.load_foreign_plugins()
    assert built_in


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        ((), "no property was checked"),
        (("skipped",), "no property was checked (one: why)"),
        (("passed", "skipped", "failed"), "1 of 2 properties held"),
        (("passed", *("failed",) * 5), "1 of 6 properties held (stopped after 5 failures)"),
    ],
)
def test_what_was_checked_is_told(statuses: tuple[str, ...], told: str) -> None:
    assert _properties([Outcome("mine", "one", status, "why") for status in statuses]) == told
