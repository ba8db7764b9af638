"""Checks and measurements on a CUDA device. Run by tox -e gpu, on a machine that has one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import attnbench
from attnbench.benchmark import records as store
from tests.cli_runs import Result, run

KERNELS = ("additive/factorised", "concat_tanh_sum/factorised", "gaussian/differences")
SCORINGS = ("scaled_dot", "additive", "gaussian", "bilinear", "vector_sum")


@pytest.fixture(autouse=True)
def there_is_one() -> None:
    assert torch.cuda.is_available(), "these tests need a CUDA device"


def bad(result: Result) -> dict[str, str]:
    """Why the invariants fail that do."""
    outcomes = result.json["outcomes"]
    wrong = [o for o in outcomes if o["status"] not in ("passed", "skipped")]
    return {o["invariant"]: "\n".join((o["status"], o["reason"], str(o["command"]))) for o in wrong}


@pytest.mark.parametrize("subject", [*SCORINGS, "scaled_dot/fused", *KERNELS])
def test_a_subject_keeps_every_invariant_on_the_device(subject: str, tmp_path: Path) -> None:
    result = run("check", subject, "--device", "cuda", "--json", folder=tmp_path)
    assert not bad(result)
    assert sum(o["status"] == "passed" for o in result.json["outcomes"]) >= 20


@pytest.mark.parametrize("subject", ["causal_attention", "rotary_attention", "soft", "multi_head"])
def test_layers_and_mechanisms_keep_theirs(subject: str, tmp_path: Path) -> None:
    result = run("check", subject, "--device", "cuda", "--json", folder=tmp_path)
    assert not bad(result)


def test_a_kernel_that_is_wrong_on_the_device_alone_is_found(tmp_path: Path) -> None:
    (tmp_path / "late.py").write_text(
        "import torch\n"
        "from torch.nn.functional import scaled_dot_product_attention\n"
        "def attend(query, key, value, attn_mask=None, is_causal=False):\n"
        "    inputs = (query, key, value * 1.01 if query.is_cuda else value, attn_mask)\n"
        "    return scaled_dot_product_attention(*inputs, is_causal=is_causal)\n"
    )
    conventions = ("--convention", "empty_rows=nan", "--convention", "hidden_slots=finite")
    wanted = ("check", "late.py:attend", "--as", "sdpa", *conventions)
    assert run(*wanted, folder=tmp_path).code == 0
    found = run(*wanted, "--device", "cuda", "--json", folder=tmp_path)
    assert found.code == 1
    assert "agrees_with_float64" in bad(found)


@pytest.mark.parametrize("timing", ["call", "device"])
def test_the_device_is_measured_by_its_own_clock(timing: str, tmp_path: Path) -> None:
    subjects = ("scaled_dot/fused", "additive/factorised")
    options = ("--device", "cuda:0", "--length", "256", "--timing", timing, "--processes", "2")
    result = run("bench", *subjects, *options, "--results", str(tmp_path), folder=tmp_path)
    assert result.code == 0, result.err
    records = [r for path in tmp_path.rglob("*.jsonl") for r in store.read(path)]
    assert {r.status for r in records} == {"ok"}, [(r.subject, r.status) for r in records]
    assert {r.device for r in records} == {"cuda:0"}


def test_memory_and_versions_of_the_device_are_recorded(tmp_path: Path) -> None:
    options = ("--device", "cuda:0", "--length", "1024", "--processes", "2")
    result = run("bench", "additive", *options, "--results", str(tmp_path), folder=tmp_path)
    assert result.code == 0, result.err
    (path,) = tmp_path.rglob("*.jsonl")
    additive = [r for r in store.read(path) if r.subject == "additive"]
    pairs = 1024 * 1024 * 64 * 4  # the hidden units of each pair, in float32
    assert all(r.peak_bytes >= pairs for r in additive)
    assert torch.version.cuda in path.read_text()


def test_a_call_of_a_kernel_can_be_captured_in_a_graph() -> None:
    with torch.device("cuda"):
        module = attnbench.get("additive").make(6, 6)
        query, key, value = torch.randn(2, 5, 6), torch.randn(2, 9, 6), torch.randn(2, 9, 3)
        lens = torch.tensor([3, 9])

        def call() -> torch.Tensor:
            return attnbench.attend(module, query, key, value, kernel="factorised", valid_lens=lens)

        with torch.no_grad():
            eager = call()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                captured = call()
            query.copy_(torch.randn_like(query))
            graph.replay()
            torch.testing.assert_close(captured, call(), rtol=0, atol=0)
        assert not torch.equal(captured, eager)
