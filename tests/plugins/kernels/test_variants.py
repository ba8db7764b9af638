"""Variants of the compiled loops: all exact, one chosen for the processor, and the choice kept."""

import json
import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_plugins.kernels import _library, _native, _sums, _variants
from attnbench_plugins.kernels._native import Form

import attnbench
from tests.cli_runs import run

LOOPS = _library.library()
NAMES = list(_variants.variants(LOOPS)) if LOOPS is not None else []
pytestmark = pytest.mark.compile


@pytest.fixture(autouse=True)
def _anew() -> Iterator[None]:
    if LOOPS is None:
        pytest.skip("there is no compiler")
    _native.choice.cache_clear()
    yield
    _native.choice.cache_clear()


def chosen(path: Path, processor: str = "this one", runs: Any = None) -> _variants.Choice:
    assert LOOPS is not None

    def nothing() -> tuple[Any, Any]:
        return (lambda number: None), (lambda number: None)

    return _variants.choose(LOOPS, path, processor, runs or nothing)


def refused() -> Any:
    raise AssertionError("measured")


def of_variant(number: int, *tensors: Any, reach: float | None = None) -> tuple[Any, ...]:
    """Weights, and gradients of ``a``, ``b`` and ``w``, by one variant."""
    a, b, w, g = tensors
    reach = float(a.abs().max() + b.abs().max()) if reach is None else reach
    weights, grad_a = g.new_empty(g.shape), torch.empty_like(a)
    _native.attend(a, b, w, None, b.shape[1], Form.QUOTIENT, reach, weights=weights, variant=number)
    more = _native.slopes(g, a, b, w, b.shape[1], Form.QUOTIENT, reach, grad_a, variant=number)
    return weights, grad_a, *more


def in_float64(a: Any, b: Any, w: Any, g: Any) -> tuple[Any, ...]:
    leaves = [t.double().requires_grad_() for t in (a, b, w)]
    units = (leaves[0][:, :, None] + leaves[1][:, None]).tanh()
    scores = (units * leaves[2][:, None, None]).sum(-1)
    return scores.softmax(-1).detach(), *torch.autograd.grad(scores, leaves, g.double())


@pytest.mark.parametrize("size", [0.7, 6.0, 16.0])
@pytest.mark.parametrize("units", [1, 7, 8, 12, 33, 64])
@pytest.mark.parametrize("name", NAMES)
def test_each_variant_is_exact_where_products_are_small_and_where_they_would_overflow(
    name: Any, units: Any, size: Any
) -> None:
    torch.manual_seed(units)
    a, b = torch.randn(2, 19, units), torch.randn(2, 37, units)
    a, b = (t / t.abs().max() * size for t in (a, b))
    w = torch.randn(2, units)
    w[:, ::5] *= 1e-6  # a weight near 0 makes a factor of a product large
    g = torch.randn(2, 19, 37)
    g -= g.mean(-1, keepdim=True)
    got = of_variant(_variants.variants(LOOPS)[name], a, b, w, g)
    for ours, true in zip(got, in_float64(a, b, w, g), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", NAMES)
def test_a_forced_variant_runs_and_list_and_records_say_so(
    name: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(_variants.VARIABLE, name)
    assert _native.choice().names[0] == name
    assert f"forward {name}, " in _native.described()
    assert "(forced)" in _sums.runs_as()


def test_list_says_which_variant_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_variants.VARIABLE, NAMES[0])
    assert f"runs as: native, forward {NAMES[0]}, " in run("list", "additive").out
    monkeypatch.setenv(_variants.VARIABLE, "1024-8-magic-4")
    refusal = run("list", "additive")
    assert refusal.code == 2
    assert "ATTNBENCH_LOOPS='1024-8-magic-4'" in refusal.err
    assert NAMES[0] in refusal.err
    assert "Traceback" not in refusal.err


def test_the_fastest_is_measured_once_and_kept(tmp_path: Path) -> None:
    assert LOOPS is not None
    slope = list(_variants.slope_variants(LOOPS).values())[1]

    def runs() -> tuple[Any, Any]:
        return (lambda number: burn(number != 2)), (lambda number: burn(number != slope))

    def burn(slow: bool) -> None:
        until = time.thread_time() + (0.002 if slow else 0.0005)
        while time.thread_time() < until:
            pass

    found = chosen(tmp_path / "kept.json", runs=runs)
    assert (found.scores, found.slopes, found.how) == (2, slope, "measured")
    assert chosen(tmp_path / "kept.json", runs=refused) == found
    content = json.loads((tmp_path / "kept.json").read_text())
    assert content["relative_times"]["scores"][NAMES[2]] < 0.9


class Busy:
    """Stands in for a clock and for runs of variants, on a machine that disturbs most of them."""

    def __init__(self, seconds: list[float], seed: int) -> None:
        self.seconds, self.now, self.chance = seconds, 0.0, random.Random(seed)

    def thread_time(self) -> float:
        return self.now

    def run(self, number: int) -> None:
        self.now += self.seconds[number] * (1 + self.chance.expovariate(5))


@pytest.mark.parametrize(("second", "chosen_one"), [(0.985, "plain"), (0.9, "other")])
def test_noise_does_not_choose_between_variants_that_are_nearly_as_fast(
    second: float, chosen_one: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(50):
        busy = Busy([1e-3, second * 1e-3, 1.2e-3], seed)
        with monkeypatch.context() as patched:
            patched.setattr(time, "thread_time", busy.thread_time)
            name, relative = _variants._fastest(busy.run, {"plain": 0, "other": 1, "slow": 2})
        assert name == chosen_one, seed
        assert relative["plain"] == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "it cannot be read (JSONDecodeError)"),
        ("\x00\xff", "it cannot be read"),
        ("[]", "it is damaged"),
        ("{}", "it is damaged"),
        ('{"processor": "this one", "scores": [], "slopes": {}}', "a variant that there is not"),
        ('{"processor": "another", "scores": "a", "slopes": "b"}', "it is from another processor"),
        ('{"processor": "this one", "scores": "a", "slopes": "b"}', "a variant that there is not"),
    ],
)
def test_a_choice_that_is_damaged_or_foreign_is_measured_again_with_one_line(
    tmp_path: Path, content: Any, why: Any
) -> None:
    path = tmp_path / "kept.json"
    path.write_bytes(content.encode("latin-1"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = chosen(path)
        assert chosen(path, runs=refused) == first
    (only,) = caught
    assert only.category is _variants.ChoiceWarning
    assert why in str(only.message)
    assert "\n" not in str(only.message)


def test_a_cache_that_cannot_be_written_is_measured_each_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert chosen(tmp_path / "nowhere" / "kept.json").how == "measured"


def test_measuring_takes_less_than_a_second() -> None:
    scores, slopes = _native._trial_runs()
    started = time.process_time()
    _variants._fastest(scores, _variants.variants(LOOPS))
    _variants._fastest(slopes, _variants.slope_variants(LOOPS))
    assert time.process_time() - started < 1


def test_a_record_says_which_variant_ran() -> None:
    from attnbench.benchmark.bench_case import BenchCase
    from attnbench.benchmark.measuring.contract import Contract
    from attnbench.benchmark.measuring.measurement import measure
    from attnbench.subject.lookup import resolve

    (subject,) = resolve("additive/factorised")
    case = BenchCase(attnbench.Case((1,), 8, 8, 8, 8, 8))
    found = measure(subject, case, Contract(blocks=1, cap_s=0.01))
    assert found.runs_as == f"native, {_native.choice()}"
