"""The additive kernel where it is special: its guards, its blocks, its loops and their paths."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from attnbench_plugins.kernels import _additive, _native, _tanh_sums
from attnbench_plugins.kernels.additive_factorised import attend

import attnbench


def inputs(q_len=5, kv_len=7, lead=(2,), **options):
    torch.manual_seed(0)
    module = attnbench.get("additive").make(6, 5, **options)
    return (
        module,
        torch.randn(*lead, q_len, 6),
        torch.randn(*lead, kv_len, 5),
        torch.randn(*lead, kv_len, 4),
    )


@pytest.fixture(params=["native", "eager"])
def path(request, monkeypatch):
    """The loops' path: the compiled library, or torch's operations as without a compiler."""
    if request.param == "eager":
        monkeypatch.setattr(_native, "library", lambda: None)
    yield request.param
    assert _tanh_sums.last_path() == request.param


REGIMES = {
    "usual": (0.7, 0.7, 0.0),
    "tiny": (1e-4, 1e-4, 0.0),
    "small": (0.1, 0.1, 0.0),
    "zero": (0.0, 0.0, 0.0),
    "wide": (4.0, 4.0, 0.0),
    "one side at 200": (200.0, 1.0, 0.0),
    "both sides at 200": (200.0, 200.0, 0.0),
    "offset 1e4": (1.0, 1.0, 1e4),
    "offset 50": (1.0, 0.01, 50.0),
}


def weights(a, b, w):
    """Attention weights of the loops, as logarithms."""
    found = a.new_empty(*a.shape[:2], b.shape[1])
    _tanh_sums.attend(a, b, w, None, b.shape[1], weights=found)
    return found.double().log()


@pytest.mark.parametrize("units", [1, 3, 16, 33, 128])
@pytest.mark.parametrize("regime", REGIMES)
def test_weights_are_as_exact_as_with_tanh_in_float32(regime, units, path):
    torch.manual_seed(0)
    a_size, b_size, offset = REGIMES[regime]
    a = torch.randn(2, 19, units) * a_size + offset
    b = torch.randn(2, 23, units) * b_size - offset
    w = torch.randn(2, units) / (0.39 * units) ** 0.5
    w[:, units // 2] = 0.0

    def plain(a, b, w):
        hidden = (a[:, :, None] + b[:, None]).tanh()
        return (hidden * w[:, None, None]).sum(-1).softmax(-1).double().log()

    expected = plain(a.double(), b.double(), w.double())
    off = (weights(a, b, w) - expected).abs().max()
    assert off <= 2 * (plain(a, b, w) - expected).abs().max() + 1e-6


@pytest.mark.parametrize("units", [1, 5, 16, 33])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_are_as_exact_as_with_tanh(regime, units, dtype, path):
    torch.manual_seed(0)
    a_size, b_size, offset = REGIMES[regime]
    a = (torch.randn(2, 19, units) * a_size + offset).to(dtype)
    b = (torch.randn(2, 200, units) * b_size - offset).to(dtype)
    w, g = torch.randn(2, units, dtype=dtype), torch.randn(2, 19, 200, dtype=dtype)
    g -= g.mean(-1, keepdim=True)

    def plain(*leaves):
        a, b, w, g = leaves
        t = (a[:, :, None] + b[:, None]).tanh()
        slope = g[..., None] * (1 - t * t) * w[:, None, None]
        return slope.sum(2), slope.sum(1), (g[..., None] * t).sum((1, 2))

    grad_a = torch.empty_like(a)
    got = grad_a, *_tanh_sums.slopes(g, a, b, w, 200, grad_a)
    expected = plain(*(t.double() for t in (a, b, w, g)))
    for ours, theirs, true in zip(got, plain(a, b, w, g), expected, strict=True):
        error = (theirs.double() - true).abs().max()
        ulp = torch.finfo(dtype).eps * g.abs().sum() ** 0.5
        assert (ours.double() - true).abs().max() <= 2 * error + 8 * ulp


def test_a_block_too_wide_for_exponentials_takes_tanh_and_the_others_do_not(monkeypatch):
    monkeypatch.setattr(_tanh_sums, "_FUSED_PAIRS", 8 * 16)
    module, query, key, value = inputs(q_len=32, kv_len=16, lead=(1,))
    query[0, :8], key[0, ::2] = query[0, :8] * 1e3, key[0, ::2] * 1e3
    native, reaches = _native.attend, []

    def noted(a, b, w, mask, visible, reach, *others):
        reaches.append(reach)
        return native(a, b, w, mask, visible, reach, *others)

    monkeypatch.setattr(_native, "attend", noted)
    got = attnbench.attend(module, query, key, value, kernel="factorised")
    assert [reach is None for reach in reaches] == [True, False, False, False]
    torch.testing.assert_close(
        got, attnbench.attend(module, query, key, value, kernel="plain"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kept", [0, 2**23])
@pytest.mark.parametrize("pairs", [1, 100, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_change_nothing(monkeypatch, causal, pairs, kept):
    module, query, key, value = inputs(q_len=20, kv_len=33, lead=(2, 2))
    query.requires_grad_()
    key.requires_grad_()

    def run():
        output = attnbench.attend(module, query, key, value, kernel="factorised", is_causal=causal)
        return output, *torch.autograd.grad(output.square().sum(), (query, key))

    whole = run()
    monkeypatch.setattr(_tanh_sums, "_FUSED_PAIRS", pairs)
    monkeypatch.setattr(_additive, "KEPT_PAIRS", kept)
    for got, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing_but_rounding(threads):
    torch.manual_seed(0)
    a, b, value = torch.randn(1, 130, 20), torch.randn(1, 150, 20), torch.randn(1, 150, 7)
    leaves = [t.requires_grad_() for t in (a, b, torch.randn(20), value)]

    def run():
        output = _additive.additive_attention(*leaves, None, False)
        return output, *torch.autograd.grad(output.square().sum(), leaves)

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = run()
        torch.set_num_threads(threads)
        shared = [run() for _ in range(3)]
    finally:
        torch.set_num_threads(before)
    for found in shared:
        for got, again, expected in zip(found, shared[0], alone, strict=True):
            assert torch.equal(got, again)
            torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def peak_bytes(function) -> int:
    """The most that was allocated at once beyond what there was, by the profiler's events."""
    with torch.profiler.profile(profile_memory=True) as profile:
        function()
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


def test_long_sequences_need_no_tensor_of_all_pairs(monkeypatch):
    size, units = 2048, 16
    torch.manual_seed(0)
    a, b, w = torch.randn(1, size, units), torch.randn(1, size, units), torch.randn(units)
    value = torch.randn(1, size, 8)
    leaves = [t.requires_grad_() for t in (a, b, w, value)]
    monkeypatch.setattr(_tanh_sums, "_FUSED_PAIRS", 2**17)
    monkeypatch.setattr(_additive, "KEPT_PAIRS", 0)

    def both():
        output = _additive.additive_attention(a, b, w, value, None, False)
        torch.autograd.grad(output.sum(), leaves)

    both()
    assert peak_bytes(both) < size * size * 4 / 2


def test_inputs_stay_as_they_were_and_any_layout_will_do():
    module, query, key, value = inputs(lead=(2, 3))
    expected = attnbench.attend(module, query, key, value, kernel="factorised")
    strided = [t.mT.contiguous().mT for t in (query, key, value)]
    copies = [t.clone() for t in strided]
    got = attnbench.attend(module, *strided, kernel="factorised")
    torch.testing.assert_close(got, expected)
    assert all(torch.equal(x, y) for x, y in zip(strided, copies, strict=True))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_modes_change_nothing(guard):
    module, query, key, value = inputs()
    expected = attnbench.attend(module, query, key, value, kernel="plain")
    with guard():
        query = query.clone().requires_grad_()
        got = attnbench.attend(module, query, key, value, kernel="factorised")
    assert got.requires_grad == (guard is torch.enable_grad)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


def test_a_second_derivative_is_refused_with_the_way_out():
    module, query, key, value = inputs()
    query.requires_grad_()
    output = attnbench.attend(module, query, key, value, kernel="factorised")
    (first,) = torch.autograd.grad(output.sum(), query, create_graph=True)
    with pytest.raises(NotImplementedError, match="kernel='plain'"):
        first.sum().backward()


def test_vmap_over_inputs_parameters_and_gradients_equals_a_loop():
    module, query, key, value = inputs(lead=(3, 2))
    mask = torch.randn(3, 1, 5, 7)
    scale = torch.randn(3)

    def loss(query, key, value, mask, scale):
        parameters = {name: p * scale for name, p in module.named_parameters()}
        call = lambda *args: torch.func.functional_call(  # noqa: E731
            _Call(module), {f"module.{n}": p for n, p in parameters.items()}, args
        )
        return call(query, key, value, mask).square().sum()

    per_item = torch.func.grad(loss, argnums=(0, 1, 2, 3, 4))
    got = torch.vmap(per_item)(query, key, value, mask, scale)
    shared = torch.vmap(per_item, in_dims=(0, None, 0, None, None))(
        query, key[0], value, mask[0], scale[0]
    )
    for item in range(3):
        one = per_item(query[item], key[item], value[item], mask[item], scale[item])
        two = per_item(query[item], key[0], value[item], mask[0], scale[0])
        for all_items, alone in zip((*got, *shared), (*one, *two), strict=True):
            torch.testing.assert_close(all_items[item], alone, rtol=1e-4, atol=1e-4)


class _Call(torch.nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, query, key, value, mask=None):
        return attend(self.module, query, key, value, mask)


def test_it_sits_in_a_compiled_and_in_an_exported_model():
    module, query, key, value = inputs()
    query.requires_grad_()
    model = _Call(module)
    expected = model(query, key, value)
    got = torch.compile(model, fullgraph=True, backend="aot_eager")(query, key, value)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got.sum(), query), torch.autograd.grad(expected.sum(), query)
    )
    queries, keys = (torch.export.Dim(name, min=2, max=4096) for name in ("queries", "keys"))
    shapes = ({1: queries}, {1: keys}, {1: keys})
    short = query.detach(), key, value
    exported = torch.export.export(model, short, dynamic_shapes=shapes).module()
    longer = [t.repeat(1, 3, 1) for t in short]
    torch.testing.assert_close(exported(*longer), model(*longer))


SIZES_SCRIPT = """
import itertools, torch
from torch._dynamo.utils import counters
from attnbench_plugins.kernels import _tanh_sums
torch._dynamo.config.recompile_limit = 2
torch._dynamo.config.fail_on_recompile_limit_hit = True
_tanh_sums._path = lambda like: "compiled"
for n, l, s, h in itertools.product((1, 2, 5), (1, 9), (1, 40), (1, 3, 16)):
    a, b, w = torch.randn(n, l, h), torch.randn(n, s, h), torch.randn(n, h)
    g, weights = torch.randn(n, l, s), torch.empty(n, l, s)
    for size in (1.0, 1e3):
        _tanh_sums.attend(a * size, b * size, w, None, s, weights=weights)
        _tanh_sums.slopes(g, a * size, b * size, w, s, torch.empty(n, l, h))
    t = (a[:, :, None] + b[:, None]).tanh() * 1
    _tanh_sums.attend(a, b, w, None, s, weights=weights)
    torch.testing.assert_close(weights, (t * w[:, None, None]).sum(-1).softmax(-1))
    leaf = a.mul(1e3).requires_grad_()
    with torch.inference_mode():
        _tanh_sums.attend(leaf, b * 1e3, w * 1, None, s, weights=weights)
print(counters["stats"]["unique_graphs"], counters["inductor"]["fxgraph_cache_miss"])
"""
NATIVE_SCRIPT = """
import itertools, torch
from attnbench_plugins.kernels import _additive, _tanh_sums
for n, l, s, h in itertools.product((1, 2), (1, 9), (1, 40), (1, 16)):
    for dtype in (torch.float32, torch.float64):
        tensors = torch.randn(n, l, h), torch.randn(n, s, h), torch.randn(h), torch.randn(n, s, 3)
        leaves = [t.to(dtype).requires_grad_() for t in tensors]
        _additive.additive_attention(*leaves, None, False).sum().backward()
print(_tanh_sums.last_path())
"""
FALLBACK_SCRIPT = """
import sys, warnings, torch, attnbench
from attnbench_plugins.kernels import _native, _tanh_sums
module = attnbench.get("additive").make(6, 5)
query, key, value = torch.randn(2, 5, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 4)
query.requires_grad_()
assert _tanh_sums.last_path() is None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        got = attnbench.attend(module, query, key, value, kernel="factorised")
        grad = torch.autograd.grad(got.sum(), query)
plain = attnbench.attend(module, query, key, value, kernel="plain")
torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
torch.testing.assert_close(grad, torch.autograd.grad(plain.sum(), query), rtol=1e-4, atol=1e-5)
ours = [w for w in caught if w.category is _native.NotCompiledWarning]
print(_tanh_sums.last_path(), len(ours))
"""


def script(source: str, cache, **environment: str) -> str:
    """What a script prints in a process of its own, with a cache of compiled code of its own."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(cache), "XDG_CACHE_HOME": str(cache)}
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, **caches, **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


def test_four_graphs_a_direction_serve_all_sizes_and_a_second_process_compiles_none(tmp_path):
    assert script(SIZES_SCRIPT, tmp_path).split()[0] == "8"
    assert script(SIZES_SCRIPT, tmp_path).split() == ["8", "0"]


def test_one_library_serves_all_sizes_and_dtypes_and_a_second_process_compiles_none(tmp_path):
    calls, compiler = tmp_path / "calls", tmp_path / "compiler"
    real = os.environ.get("CXX", "c++")
    compiler.write_text(f'#!/bin/sh\necho called >> {calls}\nexec {real} "$@"\n')
    compiler.chmod(0o755)
    for _ in range(2):
        assert script(NATIVE_SCRIPT, tmp_path, CXX=str(compiler)) == "native"
    assert calls.read_text() == "called\n"


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "/bin/false"])
def test_without_a_working_compiler_it_runs_eagerly_and_says_so_once(tmp_path, compiler):
    assert script(FALLBACK_SCRIPT, tmp_path, CXX=compiler) == "eager 1"


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path):
    (tmp_path / "attnbench").write_text("in the way")
    assert script(NATIVE_SCRIPT, tmp_path) == "native"


def test_the_native_path_is_the_one_that_ran():
    module, query, key, value = inputs()
    attnbench.attend(module, query, key, value, kernel="factorised")
    assert _tanh_sums.last_path() == "native"
