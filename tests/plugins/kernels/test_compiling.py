"""What compiles the pairwise kernels: how often, where it is kept, and what runs without it."""

import os
import platform
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

SIZES_SCRIPT = """
import itertools, torch
from torch._dynamo.utils import counters
from attnbench_plugins.kernels import _sums
torch._dynamo.config.recompile_limit = 2
torch._dynamo.config.fail_on_recompile_limit_hit = True
_sums._path = lambda like: "compiled"
for n, l, s, h in itertools.product((1, 2, 5), (1, 9), (1, 40), (1, 3, 16)):
    a, b, w = torch.randn(n, l, h), torch.randn(n, s, h), torch.randn(n, h)
    g, weights = torch.randn(n, l, s), torch.empty(n, l, s)
    for size, squares in ((1.0, False), (1e3, False), (1.0, True)):
        _sums.attend(a * size, b * size, w, None, s, squares, weights=weights)
        _sums.slopes(g, a * size, b * size, w, s, squares, torch.empty(n, l, h))
    t = (a[:, :, None] + b[:, None]).tanh() * 1
    _sums.attend(a, b, w, None, s, False, weights=weights)
    torch.testing.assert_close(weights, (t * w[:, None, None]).sum(-1).softmax(-1))
    leaf = a.mul(1e3).requires_grad_()
    with torch.inference_mode():
        _sums.attend(leaf, b * 1e3, w * 1, None, s, False, weights=weights)
print(counters["stats"]["unique_graphs"], counters["inductor"]["fxgraph_cache_miss"])
"""
NATIVE_SCRIPT = """
import itertools, torch
from attnbench_plugins.kernels import _pairwise, _sums
for n, l, s, h in itertools.product((1, 2), (1, 9), (1, 40), (1, 16)):
    for dtype in (torch.float32, torch.float64):
        tensors = torch.randn(n, l, h), torch.randn(n, s, h), torch.randn(h), torch.randn(n, s, 3)
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        _pairwise.pairwise_attention(*leaves, None, False).sum().backward()
print(_sums.last_path())
"""
FALLBACK_SCRIPT = """
import sys, warnings, torch, attnbench
from attnbench_plugins.kernels import _library, _sums
module = attnbench.get("additive").make(6, 5)
query, key, value = torch.randn(2, 5, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 4)
query.requires_grad_()
assert _sums.last_path() is None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        got = attnbench.attend(module, query, key, value, kernel="factorised")
        grad = torch.autograd.grad(got.sum(), query)
plain = attnbench.attend(module, query, key, value, kernel="plain")
torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
torch.testing.assert_close(grad, torch.autograd.grad(plain.sum(), query), rtol=1e-4, atol=1e-5)
ours = [w for w in caught if w.category is _library.NotCompiledWarning]
print(_sums.last_path(), len(ours))
"""
VECTORS_SCRIPT = """
import torch, attnbench
from attnbench_plugins.kernels import _sums
for name, kernel in (("additive", "factorised"), ("gaussian", "differences")):
    for dtype in (torch.float32, torch.float64):
        module = attnbench.get(name).make(6, 6).to(dtype)
        sizes = (2, 19, 6), (2, 37, 6), (2, 37, 5)
        leaves = [torch.randn(size, dtype=dtype).requires_grad_() for size in sizes]
        mask = torch.rand(19, 37) < 0.7
        for given in ({}, {"attn_mask": mask}, {"is_causal": True}):
            found = []
            for way in (kernel, "plain"):
                output = attnbench.attend(module, *leaves, kernel=way, **given)
                found.append((output, *torch.autograd.grad(output.square().sum(), leaves)))
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
print(_sums.last_path())
"""


def script(source: str, cache: Any, **environment: str) -> str:
    """What a script prints in a process of its own, with a cache of compiled code of its own."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache)}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **caches, **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


def test_two_graphs_a_form_and_direction_serve_all_sizes_and_a_second_process_compiles_none(
    tmp_path: Path,
) -> None:
    assert script(SIZES_SCRIPT, tmp_path).split()[0] == "12"
    assert script(SIZES_SCRIPT, tmp_path).split() == ["12", "0"]


def test_one_library_serves_all_sizes_and_dtypes_and_a_second_process_compiles_none(
    tmp_path: Path,
) -> None:
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    real = os.environ.get("CXX", "c++")
    compiler.write_text(f'#!/bin/sh\necho called >> {calls}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    for _ in range(2):
        assert script(NATIVE_SCRIPT, tmp_path, CXX=str(compiler)) == "native"
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "/bin/false"])
def test_without_a_working_compiler_it_runs_eagerly_and_says_so_once(
    tmp_path: Path, compiler: Any
) -> None:
    assert script(FALLBACK_SCRIPT, tmp_path, CXX=compiler) == "eager 1"


def test_without_a_compiler_list_does_not_promise_to_compile(tmp_path: Path) -> None:
    source = "from attnbench_plugins.kernels import _sums; print(_sums.runs_as())"
    told = "eager, since there is no C++ compiler '/no/such/compiler'"
    assert script(source, tmp_path, CXX="/no/such/compiler") == told
    assert script(source, tmp_path) == "native, compiled and measured at first use"


def test_a_library_that_a_crash_left_damaged_is_compiled_again(tmp_path: Path) -> None:
    source = "from attnbench_plugins.kernels import _library; print(_library.library_path())"
    path = Path(script(source, tmp_path))
    assert script(NATIVE_SCRIPT, tmp_path) == "native"
    whole = path.read_bytes()
    for damaged in (b"", whole[: len(whole) // 2]):
        path.write_bytes(damaged)
        assert script(NATIVE_SCRIPT, tmp_path) == "native"
        assert path.stat().st_size == len(whole)


def test_a_compiler_without_openmp_gives_loops_of_one_thread(tmp_path: Path) -> None:
    compiler, real = tmp_path / "compiler", os.environ.get("CXX", "c++")
    compiler.write_text(f'#!/bin/sh\ncase "$*" in *-fopenmp*) exit 1;; esac\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    assert script(VECTORS_SCRIPT, tmp_path, CXX=str(compiler)) == "native"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="these are flags of x86 compilers")
@pytest.mark.parametrize("flag", ["-mno-avx512f", "-mno-avx"])
def test_narrower_vectors_than_this_processor_has_give_the_same(tmp_path: Path, flag: Any) -> None:
    compiler = f"{os.environ.get('CXX', 'g++')} {flag}"
    assert script(VECTORS_SCRIPT, tmp_path, CXX=compiler) == "native"


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "attnbench").write_text("in the way")
    assert script(NATIVE_SCRIPT, tmp_path) == "native"
