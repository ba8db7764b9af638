"""The Triton kernels, each in a process of its own.

They run on the CPU by Triton's interpreter and, where there is a GPU, compiled for it too.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from attnbench_kernels import library, online, sums

pytestmark = pytest.mark.slow
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)
everywhere = pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=needs_triton),
        *(["cuda"] if torch.cuda.is_available() else []),
    ],
)

AGREES = """
import torch, attnbench
from attnbench_kernels import sums
torch.manual_seed(0)
for name in ("additive", "concat_tanh_sum", "gaussian"):
    kernel = "differences" if name == "gaussian" else "factorised"
    module = attnbench.get(name).make(6, 6)
    for size in (1.0, 50.0):
        query, key = torch.randn(2, 2, 5, 6) * size, torch.randn(2, 2, 9, 6) * size
        if name == "gaussian":  # far from the origin
            query, key = query / size + size, key / size + size
        leaves = [t.requires_grad_() for t in (query, key, torch.randn(2, 2, 9, 3))]
        wanted = [*leaves, *module.parameters()]
        mask = torch.rand(5, 9) < 0.7
        for given in ({}, {"attn_mask": mask}, {"attn_mask": torch.randn(5, 9)},
                      {"is_causal": True}, {"valid_lens": torch.tensor([3, 9])}):
            found = []
            for way in (kernel, "plain"):
                output = attnbench.attend(module, *leaves, kernel=way, **given)
                found.append((output, *torch.autograd.grad(output.square().sum(), wanted)))
            torch.testing.assert_close(*found, rtol=1e-3, atol=1e-4)
    for dtype in (torch.float16, torch.bfloat16):
        half = [t.detach().to(dtype) for t in leaves]
        module = module.to(dtype)
        ours, plain = (attnbench.attend(module, *half, kernel=k) for k in (kernel, "plain"))
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, plain, rtol=2e-2, atol=2e-2)
print(sums.runs_as())
"""
TILES = """
import sys, torch
from attnbench_kernels import triton_loops
torch.manual_seed(1)

def usual(a, b, w): return a, b, w
def signs_differ(a, b, w): return a * 3, b * 3, -w.abs() * (-1.0) ** torch.arange(w.shape[1])
def weights_differ(a, b, w): return a, b, w * 10.0 ** -torch.arange(w.shape[1]).mul(3)
def some_weigh_nothing(a, b, w): return a, b, w * (torch.arange(w.shape[1]) % 2)
def none_weighs(a, b, w): return a, b, w * 0
def wide(a, b, w):  # no product of four is finite without a limit
    a, b = a * 3, b * 3
    a[:, ::2] += 16
    b[:, 1::3] += 16
    return a, b, w
def wide_for_small_weights(a, b, w):  # and not if all weighed the same
    a[..., 1:] = a[..., 1:] / 10 + 11.5
    b[..., 1:] = b[..., 1:] / 10 + 8.5
    w[:, 1:] = w[:, 1:].abs() * 1e-9
    return a, b, w
def shifted(a, b, w): return a + 300, b - 300, w
def saturated(a, b, w):  # exponentials are 0 or infinite
    w[:, 0] = 0
    b[:, ::2] += 70
    b[:, 3::5] -= 700
    return a, b, w
def tanh_in_some_tiles(a, b, w):
    for side in a, b:
        side[:, :9] += 60
        side[:, 9:16] -= 60
    return a, b, w

for case in sys.argv[1:]:
    for q_len, kv_len, units, causal in ((40, 70, 5, False), (70, 130, 4, True), (64, 64, 1, True)):
        a, b = torch.randn(1, q_len, units), torch.randn(1, kv_len, units)
        a, b, w = globals()[case](a, b, torch.randn(1, units))
        value = torch.randn(1, kv_len, 150)
        leaves = [t.double().requires_grad_() for t in (a, b, w, value)]
        each = (leaves[0][:, :, None] + leaves[1][:, None]).tanh()
        scores = (each * leaves[2][:, None, None]).sum(-1)
        if causal:
            seen = torch.ones(q_len, kv_len, dtype=torch.bool).tril(kv_len - q_len)
            scores = scores.masked_fill(~seen, -torch.inf)
        true = scores.softmax(-1) @ leaves[3]
        grad = torch.randn(true.shape)
        output, logs = triton_loops.attend(a, b, w, value, None, causal, False)
        got = triton_loops.differentiate(grad, output, logs, a, b, w, value, None, causal, False)
        again = triton_loops.differentiate(grad, output, logs, a, b, w, value, None, causal, False)
        assert all(torch.equal(x, y) for x, y in zip(got, again))
        expected = true, *torch.autograd.grad(true, leaves, grad.double())
        for ours, theirs in zip((output, *got), expected):
            size = max(1, theirs.abs().max().item())
            torch.testing.assert_close(
                ours.double() / size, theirs / size, rtol=1e-4, atol=1e-5, msg=lambda m: case + m
            )
print("done")
"""
CASES = (
    "usual", "signs_differ", "weights_differ", "some_weigh_nothing", "none_weighs", "wide",
    "wide_for_small_weights", "shifted", "saturated", "tanh_in_some_tiles",
)  # fmt: skip
ROUNDS = """
import sys, torch
from attnbench_kernels import triton_loops
torch.manual_seed(2)
size, weight = map(float, sys.argv[1:])
a, b, w = (torch.randn(1, n, 1024) for n in (3, 5, 1))
a, b, w = a * size, b * size, w[0].sign() * weight
true = (a.double()[:, :, None] + b.double()[:, None]).tanh() @ w[0].double()
logs = triton_loops.attend(a, b, w, torch.randn(1, 5, 1), None, False, False)[1]
print((logs - true.logsumexp(-1)).abs().max().item())
"""
WAITS = """
import torch, attnbench
from torch.utils._python_dispatch import TorchDispatchMode
from attnbench_kernels import triton_loops
aten = torch.ops.aten
class Watched(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        waits = aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default
        assert function not in waits, f"{function} waits for the device"
        return function(*args, **(kwargs or {}))
a, b, w = torch.randn(2, 5, 3), torch.randn(2, 9, 3), torch.randn(2, 3)
value, mask = torch.randn(2, 9, 4), torch.rand(1, 5, 9) < 0.9
mask[..., 0] = True
module = attnbench.get("additive").make(6, 6)
leaves = [t.requires_grad_() for t in (torch.randn(2, 5, 6), torch.randn(2, 9, 6))]
attnbench.attention.masks.is_concrete = lambda lens: False  # as while a graph is captured
with Watched():
    for given, squares in ((mask, False), (torch.randn(1, 5, 9), True), (None, False)):
        found = triton_loops.attend(a, b, w, value, given, given is None, squares)
        triton_loops.differentiate(found[0], *found, a, b, w, value, given, given is None, squares)
    for given in ({"attn_mask": mask}, {"is_causal": True}, {"valid_lens": torch.tensor([3, 9])}):
        output = attnbench.attend(module, *leaves, value, kernel="factorised", **given)
        torch.autograd.grad(output, leaves, torch.ones_like(output))
print("done")
"""
FAR = """
import sys, torch
from attnbench_kernels import triton_loops
step = 2**32  # a file with holes: it takes no room
seen = torch.from_file(sys.argv[1], shared=True, size=2 * step + 9, dtype=torch.uint8)
seen = seen.as_strided((1, 3, 9), (0, step, 1))
mask = torch.rand(1, 3, 9) < 0.6
mask[..., 4] = True
seen.copy_(mask)
a, b, w, value = (torch.randn(1, n, 4) for n in (3, 9, 1, 9))
near = triton_loops.attend(a, b, w[0], value, mask, False, False)[0]
far = triton_loops.attend(a, b, w[0], value, seen.view(torch.bool), False, False)[0]
torch.testing.assert_close(far, near, rtol=0, atol=0)
print("done")
"""


def script(source: str, *arguments: str, device: str = "cpu") -> str:
    """What a script prints under the interpreter, or on a GPU."""
    default = f"import torch\ntorch.set_default_device({device!r})\n"
    where = {library.VARIABLE: library.TRITON, "TRITON_INTERPRET": "1"}
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", default + textwrap.dedent(source), *arguments],
        env={**os.environ, **(where if device == "cpu" else {})},
        capture_output=True, text=True, check=False, timeout=900,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


@everywhere
def test_it_agrees_with_the_plain_form_for_all_masks_heads_and_dtypes(device: str) -> None:
    assert script(AGREES, device=device).startswith("Triton " if device == "cpu" else "")


@everywhere
@pytest.mark.parametrize("case", CASES)
def test_several_tiles_are_exact_and_repeatable_in_every_form(case: Any, device: str) -> None:
    assert script(TILES, case, device=device) == "done"


@everywhere
@pytest.mark.parametrize(
    ("size", "weight", "most"),
    [
        (1, 1, 2e-5),  # more if a running sum were ever that of all weights
        (1e-3, 1e4, 2e-3),  # 1 - 2 r would round relative to 1, tanh rounds relative to itself
    ],
)
def test_units_that_cancel_or_are_nearly_zero_keep_their_accuracy(
    size: Any, weight: Any, most: Any, device: str
) -> None:
    assert float(script(ROUNDS, str(size), str(weight), device=device)) < most


@everywhere
def test_no_call_waits_for_the_device_so_that_a_graph_can_capture_it(device: str) -> None:
    assert script(WAITS, device=device) == "done"


@needs_triton
def test_a_mask_whose_rows_lie_4_gib_apart_is_read_where_it_lies(tmp_path: Path) -> None:
    assert script(FAR, str(tmp_path / "mask")) == "done"


class Launch:
    """Stands in for a kernel: notes its grid, and on which device it would start."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []
        self.devices: list[Any] = []
        self.current: Any = None

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        self.grids.append(grid)
        return lambda *given, **sizes: self.devices.append(self.current)

    @contextlib.contextmanager
    def device_of(self, like: torch.Tensor) -> Iterator[None]:
        self.current = like.device
        yield
        self.current = None


@needs_triton
def test_items_by_the_million_fit_into_the_grid_of_a_gpu_and_start_on_the_tensors_device(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from attnbench_kernels.triton_loops import backward, forward

    launch = Launch()
    monkeypatch.setattr(forward, "_forward", launch)
    for name in ("_backward_rows", "_backward_slots"):
        monkeypatch.setattr(backward, name, launch)
    monkeypatch.setattr(torch.cuda, "device_of", launch.device_of)
    items = 2**22
    a, b, w, value = (torch.empty(items, n, 3, device="meta") for n in (2, 5, 1, 5))
    given = (a, b, w[:, 0], value, None, False, False)
    found = forward.attend(*given)
    backward.differentiate(found[0], *found, *given)
    assert len(launch.grids) == 3
    assert all(grid[0] < 2**31 and max(grid[1:], default=1) < 2**16 for grid in launch.grids)
    assert launch.devices == [a.device] * 3


class Accelerator:
    """Stands in for a tensor on a device that is not there."""

    def __init__(self, dtype: torch.dtype = torch.float32, kind: str = "cuda") -> None:
        self.dtype = dtype
        self.device = torch.device(kind, 0)


@pytest.mark.parametrize(
    ("installed", "capability", "dtype", "runs"),
    [
        (True, (9, 0), torch.float32, True),
        (True, (7, 0), torch.float32, True),
        (True, (6, 1), torch.float32, False),
        (False, (9, 0), torch.float32, False),
        (True, (9, 0), torch.float64, False),
    ],
)
def test_an_old_gpu_or_no_triton_takes_the_next_best_path(
    installed: Any, capability: Any, dtype: Any, runs: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    online._compiled.cache_clear()
    monkeypatch.setattr(online, "_installed", lambda: installed)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: capability)
    assert online.runs_online(Accelerator(dtype)) is runs
    online._compiled.cache_clear()


def test_kernels_that_fail_on_a_gpu_are_given_up_with_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken() -> Any:
        raise RuntimeError("no such instruction\nmore")

    monkeypatch.setattr(online, "kernels", broken)
    monkeypatch.setattr(online._Status, "refusal", "")
    monkeypatch.setattr(sums.Status, "path", "eager")
    assert sums.runs_as() == "eager"
    monkeypatch.setattr(online, "_compiled", lambda index: True)
    with pytest.warns(UserWarning, match=r"Triton kernels failed on cuda .*no such instruction\)"):
        assert online.attended_online(Accelerator()) is None
    assert not online.runs_online(Accelerator())
    why = "since Triton kernels failed on cuda (RuntimeError: no such instruction)"
    assert sums.runs_as() == f"eager, {why}"
    with pytest.raises(RuntimeError):  # under the interpreter an error is one
        online.attended_online(torch.ones(1))
