"""The libraries of compiled loops: one for each instruction set, and what runs without one."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import attnbench_kernels
import pytest
import torch
from attnbench_kernels import library

import attnbench

SETS = library.instruction_sets()
EXACT_SCRIPT = """
import itertools, torch
from attnbench_kernels import native
from attnbench_kernels.native import Form
for size, units in itertools.product((0.7, 6.0, 16.0), (1, 7, 8, 12, 33, 64)):
    torch.manual_seed(units)
    a, b = torch.randn(2, 19, units), torch.randn(2, 37, units)
    a, b = (t / t.abs().max() * size for t in (a, b))
    w = torch.randn(2, units)
    w[:, ::5] *= 1e-6  # a weight near 0 makes a factor of a product large
    g = torch.randn(2, 19, 37)
    g -= g.mean(-1, keepdim=True)
    reach = float(a.abs().max() + b.abs().max())
    weights, grad_a = g.new_empty(g.shape), torch.empty_like(a)
    native.attend(a, b, w, None, 37, Form.QUOTIENT, reach, weights=weights)
    got = weights, grad_a, *native.slopes(g, a, b, w, 37, Form.QUOTIENT, reach, grad_a)
    leaves = [t.double().requires_grad_() for t in (a, b, w)]
    each = (leaves[0][:, :, None] + leaves[1][:, None]).tanh()
    scores = (each * leaves[2][:, None, None]).sum(-1)
    true = scores.softmax(-1).detach(), *torch.autograd.grad(scores, leaves, g.double())
    for ours, expected in zip(got, true, strict=True):
        torch.testing.assert_close(ours.double(), expected, rtol=2e-5, atol=2e-5)
print("exact")
"""
FALLBACK_SCRIPT = """
import warnings, torch, attnbench
from attnbench_kernels import library, sums
module = attnbench.get("additive").make(6, 5)
query, key, value = torch.randn(2, 5, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 4)
query.requires_grad_()
assert sums.Status.path is None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        got = attnbench.attend(module, query, key, value, kernel="factorised")
        grad = torch.autograd.grad(got.sum(), query)
plain = attnbench.attend(module, query, key, value, kernel="plain")
torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
torch.testing.assert_close(grad, torch.autograd.grad(plain.sum(), query), rtol=1e-4, atol=1e-5)
ours = [w for w in caught if w.category is library.NotCompiledWarning]
print(sums.Status.path, len(ours))
print(sums.runs_as())
"""
VECTORS_SCRIPT = """
import torch, attnbench
from attnbench_kernels import sums
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
print(sums.Status.path)
"""


def script(source: str, **environment: str) -> str:
    """What a script prints in a process of its own."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


@pytest.mark.parametrize("name", SETS)
def test_each_instruction_set_is_exact_where_products_are_small_and_where_they_would_overflow(
    name: Any,
) -> None:
    assert script(EXACT_SCRIPT, ATTNBENCH_LOOPS=name) == "exact"


@pytest.mark.parametrize("name", SETS)
def test_each_instruction_set_serves_all_dtypes_and_masks_and_says_that_it_runs(name: Any) -> None:
    source = f"{VECTORS_SCRIPT}print(sums.runs_as())"
    assert script(source, ATTNBENCH_LOOPS=name).splitlines() == ["native", f"native, {name}"]


def test_an_unknown_instruction_set_is_refused_with_those_that_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(library.VARIABLE, "512-4-division-4")
    library.library.cache_clear()
    with pytest.raises(attnbench.UsageError, match=r"has (\w+, )*portable\. Set one of these"):
        library.library()
    monkeypatch.delenv(library.VARIABLE)
    assert library.library() is not None


@pytest.mark.parametrize(
    ("said", "known"),
    [
        ("AVX512", ["avx512", "avx2", "portable"]),
        ("AVX2", ["avx2", "portable"]),
        ("NO AVX", ["portable"]),
        ("SVE256", ["portable"]),
    ],
)
def test_only_what_the_processor_has_is_chosen(
    said: Any, known: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: said)
    assert library.instruction_sets() == known


def test_each_instruction_set_is_compiled_into_an_object_of_its_own(tmp_path: Path) -> None:
    """They are compiled at once: of one object, one's code would be linked as another's."""
    said = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "-t", tmp_path, "-b", tmp_path],
        cwd=Path(__file__).parents[1], env={**os.environ, "CC": "true", "CXX": "true"},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    objects = re.findall(r"-o (\S+\.o) ", said)
    assert len(set(objects)) == len(objects) >= 1, said


@pytest.mark.parametrize("damaged", [None, b"", b"not a library"])
def test_without_a_library_that_loads_it_runs_eagerly_and_says_so_once(
    tmp_path: Path, damaged: Any
) -> None:
    source = Path(attnbench_kernels.__file__).parent
    package = shutil.copytree(
        source, tmp_path / source.name, ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    if damaged is not None:
        for name in SETS:
            (package / f"loops_{name}.so").write_bytes(damaged)
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    first, then = script(FALLBACK_SCRIPT, PYTHONPATH=paths).splitlines()
    assert first == "eager 1"
    assert then == "eager, since its compiled loops cannot be loaded"
