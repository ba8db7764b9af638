"""What ``attnbench doctor`` shows, and what it finds wrong."""

from __future__ import annotations

from importlib import metadata

import pytest

from attnbench.registry.versions import version_problems
from tests.cli_runs import run


def test_a_sound_installation_is_one_screen_and_exit_code_0() -> None:
    result = run("doctor", "--size", "1", "2", "16", "8")
    assert result.code == 0, result.out
    lines = result.out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for word in ("attnbench", "torch", "compiler", "math", "fastest backend first"):
        assert word in result.out
    assert lines[-1] == "Nothing is wrong here."


def test_backends_are_held_to_float64_and_timed() -> None:
    told = run("doctor", "--json", "--size", "1", "2", "16", "8", "--dtype", "bfloat16").json
    rows = {row["backend"]: row for row in told["backends"] if row["device"] == "cpu"}
    assert rows["math"]["works"]
    assert rows["math"]["agrees"]
    assert rows["math"]["time_s"] > 0
    assert not rows["cudnn"]["works"]
    assert rows["cudnn"]["reason"]
    assert {row["dtype"] for row in rows.values()} == {"bfloat16"}


@pytest.mark.parametrize(
    ("versions", "told"),
    [
        ({"torch": "2.10.0"}, "needs torch<"),
        ({"torch": "99.1"}, "but 99.1 is installed: pip install 'torch<"),
        ({"attnbench": "0.9.0"}, "attnbench-kernels"),
    ],
)
def test_versions_out_of_range_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], told: str
) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))
    wrong = version_problems()
    assert wrong
    assert told in " ".join(wrong)
    assert all("\n" not in line for line in wrong)


def test_a_check_warns_of_a_version_out_of_range(monkeypatch: pytest.MonkeyPatch) -> None:
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "99.1" if name == "torch" else real(name))
    result = run("check", "dot", "--invariant", "weights_sum_to_one")
    assert result.code == 0
    warnings = [line for line in result.err.splitlines() if line.startswith("warning: ")]
    assert any("needs torch<" in line and "but 99.1 is installed" in line for line in warnings)


def test_no_home_and_a_cache_that_cannot_be_written_are_one_line_each(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/no/such/home")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/no/such/cache")
    result = run("doctor", "--size", "1", "1", "4", "4")
    assert result.code == 1
    wrong = [line for line in result.out.splitlines() if line.startswith("wrong: ")]
    assert len(wrong) == 2
    assert "there is no home folder (/no/such/home)" in wrong[0]
    assert "/no/such/cache, for compiled code, cannot be written" in wrong[1]


def test_a_dtype_that_there_is_not_is_one_line() -> None:
    result = run("doctor", "--dtype", "float23")
    assert (result.code, len(result.err.splitlines())) == (2, 1)
    assert "Did you mean 'float32'" in result.err
