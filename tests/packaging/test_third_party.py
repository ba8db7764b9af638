"""Real distributions of third parties, installed by pip beside the wheel and removed again."""

from pathlib import Path
from typing import Any

import pytest

from tests.packaging.conftest import ROOT, Environment

DISTRIBUTIONS = ROOT / "tests" / "distributions"
WELL = "dot"  # a built-in that must go on working beside each of them
ONE = ("--profile", "quick", "--invariant", "weights_sum_to_one", "--json")


@pytest.fixture
def installed(environment: Environment, request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Install the distributions that a test names, from a copy, and remove them afterwards."""
    import shutil

    names = request.param if isinstance(request.param, tuple) else (request.param,)
    for name in names:
        copy = shutil.copytree(DISTRIBUTIONS / name, tmp_path / name)
        environment.install("--no-deps", str(copy))
    yield environment
    environment.uninstall(*names)


def subjects(environment: Environment) -> set[str]:
    return {row["subject"] for row in environment.attnbench("list", "--json", check=False).json()}


def outcomes(report: Any) -> dict[tuple[str, str], dict[str, Any]]:
    return {(o["subject"], o["invariant"]): o for o in report["outcomes"]}


@pytest.mark.parametrize("installed", ["attn-extra"], indirect=True)
def test_a_third_party_plugin_is_found_checked_and_benchmarked(installed: Any) -> None:
    assert "cosine" in subjects(installed)
    report = installed.attnbench("check", "cosine", "--profile", "quick", "--json").json()
    found = outcomes(report)
    assert report["ok"]
    assert found["cosine", "symmetric"]["status"] == "passed"
    assert found["cosine", "scores_are_finite"]["status"] == "passed"
    assert found["cosine", "bounded_by_one"]["status"] == "passed"
    bench = installed.attnbench("bench", "cosine", "--set", "smoke")
    assert "cosine" in bench.out


@pytest.mark.parametrize("installed", [("attn-extra", "broken-duplicate")], indirect=True)
def test_two_distributions_with_one_name_are_reached_by_distribution(installed: Any) -> None:
    assert {"attn-extra:cosine", "broken-duplicate:cosine"} <= subjects(installed)
    bare = installed.attnbench("check", "cosine", check=False)
    assert bare.code == 2
    assert "'cosine' is registered twice" in bare.err
    assert "ATTNBENCH_DISABLED_PLUGINS" in bare.err
    assert "Traceback" not in bare.err
    one = installed.attnbench("check", "attn-extra:cosine", WELL, *ONE)
    assert {"attn-extra:cosine", WELL} == {o["subject"] for o in one.json()["outcomes"]}


@pytest.mark.parametrize("installed", ["broken-import"], indirect=True)
def test_a_plugin_that_fails_to_load_says_why_and_the_others_go_on(installed: Any) -> None:
    listed = installed.attnbench("list", "--plugins", "--load", check=False)
    assert listed.code == 3
    assert "No module named 'a_module_that_is_not_there'" in listed.out
    check = installed.attnbench("check", WELL, *ONE, check=False)
    assert check.code == 3
    assert check.json()["ok"]
    assert "attnbench list --plugins --load" in check.err
    strict = installed.attnbench("check", WELL, "--strict-plugins", check=False)
    assert strict.code == 3
    assert "Traceback" not in strict.err
