"""Each variant of the compiled loops, held to the whole property suite: minutes of work."""

import re

import pytest

from tests.cli_runs import run

KERNELS = ("additive/factorised", "concat_tanh_sum/factorised")


def test_each_variant_passes_the_whole_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNBENCH_LOOPS", "1024-8-magic-4")
    names = re.findall(r"\b\d+-\d+-(?!magic)\w+-\d+\b", run("list", "additive").err)
    assert names, "there is no compiler"
    for name in names:
        monkeypatch.setenv("ATTNBENCH_LOOPS", name)
        result = run("check", *KERNELS, "--profile", "quick")
        assert result.code == 0, result.out
