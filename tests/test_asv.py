"""The asv suite: names, parameters, and numbers that stay with their subject."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnbench import asv
from attnbench.benchmark.verification import Unverified
from attnbench.errors import UsageError
from tests.asv_scratch import Scratch
from tests.cli_runs import python

FIRST_CASE = next(iter(asv.CASES))
FIRST = f"'{FIRST_CASE}' 'cpu'"
BYTES = ("--bench", "track_peak_bytes.*L=S=64.*cpu")


def filled(*subjects: str) -> ModuleType:
    module = ModuleType("benchmarks.attention")
    asv.fill(module.__dict__, subjects)
    return module


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("additive", "additive"),
        ("additive/factorised", "additive__factorised"),
        ("multi_head(scoring=additive)", "multi_head__scoring_additive"),
        ("local(scoring=dot, window=2)", "local__scoring_dot__window_2"),
    ],
)
def test_a_class_is_named_for_its_subject(address: str, name: str) -> None:
    assert asv.class_name(address) == name
    assert getattr(filled(address), name).__doc__ == address


def test_names_that_asv_would_mistake_are_changed_and_told_apart() -> None:
    addresses = ["my-score", "my.score", "my_score", "a1²", "setup", "timeout", "_hidden"]
    names = [asv.class_name(address) for address in addresses]
    assert len({*names, *addresses[4:]}) == len(names) + 3
    assert all(name.isidentifier() and not name.startswith("_") for name in names)


def test_two_subjects_of_one_class_name_are_an_error() -> None:
    with pytest.raises(UsageError, match="would both be the benchmark class a__b"):
        filled("a/b", "a__b")


def test_the_cases_are_those_that_asv_has_numbers_for() -> None:
    """Numbers are kept by position: a case may be added at the end, and none changed."""
    assert [case.id for case in asv.CASES.values()][:3] == [
        "b8x4-L64-S64-Eq64-Ek64-Ev64-float32-cpu-none-contiguous-normal-s0",
        "b1x4-L256-S256-Eq64-Ek64-Ev64-float32-cpu-causal-contiguous-normal-s0",
        "b4x4-L1-S1024-Eq64-Ek64-Ev64-float32-cpu-none-contiguous-normal-s0",
    ]
    assert asv.DEVICES[0] == "cpu"


def test_a_layer_has_cases_of_its_own_and_no_backward_pass() -> None:
    module = filled("causal_attention", "additive")
    layer, scoring = module.causal_attention, module.additive
    assert layer.track_time.params[0] == list(asv.LAYER_CASES)
    assert scoring.track_time.params[0] == list(asv.CASES)
    assert layer.track_ratio.pretty_name == "causal_attention: time over causal_attention"
    assert not hasattr(layer, "track_time_backward")
    assert not hasattr(scoring, "track_cache_bytes")
    assert len(asv.LAYER_CASES) <= len(asv.CASES), "a class that is absent has those of attention"


def test_a_layer_is_measured_at_decode_against_the_plain_layer() -> None:
    suite = filled("rotary_attention").rotary_attention()
    case = "decode, B=1 S=64"
    suite.setup(case, "cpu")
    assert suite.track_cache_bytes(case, "cpu") == 256
    assert 0 <= suite.track_error(case, "cpu") <= 1
    (ratio,) = suite.track_ratio(case, "cpu")["samples"]
    assert ratio > 0.5
    suite.setup("prefill, B=8 S=64", "cpu")
    assert math.isnan(suite.track_cache_bytes(case, "cpu"))


def test_a_subject_that_is_not_installed_is_skipped() -> None:
    suite = filled("not_installed").not_installed()
    with pytest.raises(NotImplementedError, match="no scoring function"):
        suite.setup(FIRST_CASE, "cpu")


def test_a_case_that_a_subject_does_not_take_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "only_half.py").write_text(
        "import attnbench, torch\n"
        "SPEC = attnbench.ScoringSpec(\n"
        "    name='half', make=lambda q, k: torch.nn.Bilinear(q, k, 1), dtypes=('float16',)\n"
        ")\n"
    )
    address = f"{tmp_path}/only_half.py:SPEC"
    suite = getattr(filled(address), asv.class_name(address))()
    with pytest.raises(NotImplementedError, match="supports float16"):
        suite.setup(FIRST_CASE, "cpu")


def expecting(folder: Path, versions: dict[str, str]) -> ModuleType:
    """A module as asv imports it, in a run that wants these benchmarks."""
    (folder / "benchmarks").mkdir()
    (folder / "asv.conf.json").write_text('{\n  // here\n  "results_dir": "kept"\n}')
    (folder / "kept").mkdir()
    wanted: dict[str, Any] = {name: {"version": version} for name, version in versions.items()}
    (folder / "kept" / "benchmarks.json").write_text(json.dumps({**wanted, "version": 2}))
    module = ModuleType("benchmarks.attention")
    module.__file__ = str(folder / "benchmarks" / "attention.py")
    asv.fill(module.__dict__, ["additive"])
    return module


def test_a_subject_that_this_commit_lacks_is_skipped_and_other_names_are_unknown(
    tmp_path: Path,
) -> None:
    module = expecting(tmp_path, {"attention.newer.track_time": "1", "other.x.track_time": "1"})
    with pytest.raises(NotImplementedError, match="newer is not installed at this commit"):
        module.newer().setup(FIRST_CASE, "cpu")
    for name in ("x", "setup", "timeout", "__path__", "version"):
        assert not hasattr(module, name), name


def test_numbers_of_another_version_are_not_measured_in_its_name(tmp_path: Path) -> None:
    module = expecting(tmp_path, {"attention.additive.track_time": "0.old"})
    benchmark = module.additive.track_time
    with pytest.raises(NotImplementedError, match=r"not of 0\.old"):
        benchmark.setup(FIRST_CASE, "cpu")
    module.additive.track_error.setup(FIRST_CASE, "cpu")


CHEATS = Path(__file__).parents[1] / "plugins/attnbench-judge/tests/cheats"


@pytest.mark.slow
@pytest.mark.long
def test_the_suite_of_this_repository_is_read_and_one_of_its_functions_timed(
    tmp_path: Path,
) -> None:
    clone = tmp_path / "clone"  # for asv writes into the folder of its results
    subprocess.run(["git", "clone", "-q", Path(__file__).parents[1], clone], check=True)
    here = ["-E", f"existing:{sys.executable}"]
    once = ["run", *here, "--quick", "--dry-run", "--show-stderr"]
    for command in (
        ["machine", "--yes"],
        ["check", *here],
        [*once, "--bench", "attention.scaled_dot.track_time"],
    ):
        done = python("-m", "asv", *command, folder=clone, HOME=str(tmp_path))
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    assert "attention.scaled_dot.track_time" in done.stdout
    assert "failed" not in done.stdout


def test_each_process_gives_one_sample_and_asv_is_told_to_start_ten() -> None:
    suite = filled("scaled_dot").scaled_dot()
    suite.setup(FIRST_CASE, "cpu")
    for method in ("track_time", "track_ratio"):
        benchmark = getattr(suite, method)
        assert benchmark.rounds == (10 if method == "track_time" else 11)
        assert len(benchmark(FIRST_CASE, "cpu")["samples"]) == 1


def test_the_ratio_is_to_the_baseline_of_bench_or_to_a_chosen_one_and_is_rounded() -> None:
    chosen: dict[str, Any] = {"__name__": "attention"}
    asv.fill(chosen, ["dot"], baseline="scaled_dot/fused")
    for class_, name in ((filled("dot").dot, "scaled_dot"), (chosen["dot"], "scaled_dot/fused")):
        assert class_.track_ratio.pretty_name == f"dot: time over {name}"
        suite = class_()
        suite.setup(FIRST_CASE, "cpu")
        (ratio,) = suite.track_ratio(FIRST_CASE, "cpu")["samples"]
        assert 0.2 < ratio < 8.0
        assert len(str(ratio)) <= 6


def test_filling_a_suite_runs_no_tensor_operation_and_starts_no_thread() -> None:
    """Else a child forked by asv's server hangs in its first operation."""
    code = """
import os, sys, types
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Seen(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        sys.exit(f"{func} was called")

with Seen():
    before = len(os.listdir("/proc/self/task"))
    from attnbench import asv
    module = types.ModuleType("benchmarks.attention")
    asv.fill(module.__dict__)
    assert "scaled_dot" in vars(module), sorted(vars(module))
print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")) - before)
"""
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "0"]


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scratch, list[str], list[Any]]:
    """Two commits: a function is added before all others, which the older one lacks."""
    scratch = Scratch(tmp_path_factory.mktemp("history"))
    functions = {"beta": (1, 1), "gamma": (1, 4)}
    commits, numbers = [], []
    for stage in (functions, {"alpha": (1, 8), **functions}):
        commits.append(scratch.commit(stage))
        scratch.asv("run", "HEAD^!", *BYTES, "--show-stderr")
        numbers.append([scratch.numbers(commit) for commit in commits])
    scratch.asv("run", "ALL", *BYTES, "--show-stderr")
    numbers.append([scratch.numbers(commit) for commit in commits])
    return scratch, commits, numbers


History = tuple[Scratch, list[str], list[Any]]


def bytes_of(numbers: dict[tuple[str, str], float | None]) -> dict[str, float | None]:
    return {
        name.split(".")[1]: value
        for (name, case), value in numbers.items()
        if name.endswith("track_peak_bytes") and case == FIRST
    }


def test_every_old_number_is_where_it_was_when_a_plugin_comes(history: History) -> None:
    _, _, (before, after, *_) = history
    assert str(after[0]) == str(before[0])
    old, new = bytes_of(before[0]), bytes_of(after[1])
    assert set(old) == {"beta", "gamma"}
    assert {name: new[name] for name in old} == old
    assert len(set(new.values())) == 3, "else the numbers tell no subject apart"


def test_a_subject_that_an_older_commit_lacks_is_not_available_there(history: History) -> None:
    _, _, (*_, again) = history
    found = bytes_of(again[0])
    assert found["alpha"] is not None
    assert math.isnan(found["alpha"])
    assert found["gamma"] == bytes_of(history[2][0][0])["gamma"]


@pytest.mark.long
def test_what_a_benchmark_hands_over_as_samples_asv_keeps_as_samples(history: History) -> None:
    """asv does not promise this form; a newer one that drops it is noticed here."""
    scratch, commits, _ = history
    bench = ("--bench", "gamma.track_time.*L=S=64.*cpu")
    scratch.asv("run", "HEAD^!", *bench, "--show-stderr", "--record-samples")
    (path,) = (scratch.folder / "results/asv/here").glob(f"{commits[-1][:8]}-*.json")
    content = json.loads(path.read_text())
    values = content["results"]["attention.gamma.track_time"]
    row = dict(zip(content["result_columns"], values, strict=False))
    samples = row["samples"][0]
    assert len(samples) == 10
    assert sorted(samples)[4] <= row["result"][0] <= sorted(samples)[5]
    assert row["stats_ci_99_a"][0] < row["stats_ci_99_b"][0]


def test_asv_compare_and_publish_read_what_asv_run_wrote(history: History) -> None:
    scratch, commits, _ = history
    assert "attention.gamma.track_peak_bytes" in scratch.asv("compare", *commits)
    scratch.asv("publish")
    index = json.loads((scratch.folder / "html" / "index.json").read_text())
    titles = {row["pretty_name"] for row in index["benchmarks"].values()}
    assert "gamma: time, forward" in titles


def test_the_current_environment_is_benchmarked_without_building(history: History) -> None:
    scratch, commits, _ = history
    scratch.asv(
        "run",
        "--environment",
        "existing:same",
        "--set-commit-hash",
        commits[-1],
        "--bench",
        "scaled_dot.track_error.*L=S=64.*cpu",
        "--show-stderr",
        blocked="",
    )
    error = scratch.numbers(commits[-1], "existing")["attention.scaled_dot.track_error", FIRST]
    assert error is not None
    assert 0.0 < error <= 1.0


@pytest.mark.parametrize("method", ["track_peak_bytes", "track_ratio", "track_time"])
def test_wrong_results_have_no_number_at_all(method: str) -> None:
    address = f"{CHEATS / 'less_work.py'}:zeros as sdpa"
    suite = getattr(filled(address), asv.class_name(address))()
    suite.setup(FIRST_CASE, "cpu")
    with pytest.raises(Unverified, match="off the float64 reference"):
        getattr(suite, method)(FIRST_CASE, "cpu")
