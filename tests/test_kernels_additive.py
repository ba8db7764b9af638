"""The additive kernel where it is special: its guards, its blocks, its compiled loops."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch
from attnbench_plugins.kernels import _additive, _compiled, _tanh_sums
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


def exact(a, b, w):
    terms = (a.double()[:, :, None] + b.double()[:, None]).tanh() * w.double()[:, None, None]
    return terms.sum(-1)


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


@pytest.mark.parametrize("units", [1, 3, 16, 33, 128])
@pytest.mark.parametrize("regime", REGIMES)
def test_scores_are_as_exact_as_with_tanh_in_float32(regime, units):
    torch.manual_seed(0)
    a_size, b_size, offset = REGIMES[regime]
    a = torch.randn(2, 19, units) * a_size + offset
    b = torch.randn(2, 23, units) * b_size - offset
    w = torch.randn(2, units) / (0.39 * units) ** 0.5
    w[:, units // 2] = 0.0
    expected = exact(a, b, w)
    off = _tanh_sums.score_sums(a, b, w) - expected
    off = (off - off.mean(-1, keepdim=True)).abs().max()  # a constant a row goes in the softmax
    terms = (a[:, :, None] + b[:, None]).tanh() * w[:, None, None]
    plain = (terms.sum(-1) - expected).abs().max()
    assert off <= 2 * plain + 1e-6


def test_a_block_too_wide_for_exponentials_takes_tanh_and_the_others_do_not(monkeypatch):
    monkeypatch.setattr(_additive, "_BLOCK_PAIRS", 8 * 16)
    module, query, key, value = inputs(q_len=32, kv_len=16, lead=(1,))
    query[0, :8], key[0, ::2] = query[0, :8] * 1e3, key[0, ::2] * 1e3
    taken = []
    for name in ("_quotients", "_tanhs"):
        loops = getattr(_tanh_sums, name)

        def noted(*args, loops=loops, name=name):
            taken.append(name)
            return loops(*args)

        monkeypatch.setattr(_tanh_sums, name, noted)
    got = attnbench.attend(module, query, key, value, kernel="factorised")
    assert taken == ["_tanhs", "_quotients", "_quotients", "_quotients"]
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
    monkeypatch.setattr(_additive, "_BLOCK_PAIRS", pairs)
    monkeypatch.setattr(_additive, "KEPT_PAIRS", kept)
    for got, expected in zip(run(), whole, strict=True):
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


def test_long_sequences_need_no_tensor_of_all_pairs():
    size, units = 2048, 16
    torch.manual_seed(0)
    a, b, w = torch.randn(1, size, units), torch.randn(1, size, units), torch.randn(units)
    value = torch.randn(1, size, 8)
    leaves = [t.requires_grad_() for t in (a, b, w, value)]
    old = _additive._BLOCK_PAIRS, _additive.KEPT_PAIRS
    _additive._BLOCK_PAIRS, _additive.KEPT_PAIRS = 2**17, 0
    try:

        def both():
            output = _additive.additive_attention(a, b, w, value, None, False)
            torch.autograd.grad(output.sum(), leaves)

        both()
        assert peak_bytes(both) < size * size * 4 / 2
    finally:
        _additive._BLOCK_PAIRS, _additive.KEPT_PAIRS = old


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
torch._dynamo.config.error_on_recompile = True
for n, l, s, h in itertools.product((1, 2, 5), (1, 2, 9, 40), (1, 9, 40), (1, 3, 16, 40)):
    a, b, w = torch.randn(n, l, h), torch.randn(n, s, h), torch.randn(n, h)
    for size in (1.0, 1e3):
        _tanh_sums.score_sums(a * size, b * size, w)
        _tanh_sums.derivative_sums(torch.randn(n, l, s), a * size, b * size)
        _tanh_sums.derivative_sums(torch.randn(n, s, l).mT, a * size, b * size)
    leaf = a.mul(1e3).requires_grad_()
    _tanh_sums.score_sums(leaf, b, w)
    with torch.inference_mode():
        _tanh_sums.score_sums(a * 1e3, b * 1e3, w)
print(counters["stats"]["unique_graphs"], counters["inductor"]["fxgraph_cache_miss"])
"""
FALLBACK_SCRIPT = """
import sys, warnings, torch, attnbench
from attnbench_plugins.kernels import _compiled
module = attnbench.get("additive").make(6, 5)
query, key, value = torch.randn(2, 5, 6), torch.randn(2, 7, 5), torch.randn(2, 7, 4)
query.requires_grad_()
assert _compiled.last_path() is None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        got = attnbench.attend(module, query, key, value, kernel="factorised")
        grad = torch.autograd.grad(got.sum(), query)
plain = attnbench.attend(module, query, key, value, kernel="plain")
torch.testing.assert_close(got, plain, rtol=1e-5, atol=1e-5)
torch.testing.assert_close(grad, torch.autograd.grad(plain.sum(), query), rtol=1e-4, atol=1e-5)
ours = [w for w in caught if w.category is _compiled.NotCompiledWarning]
print(_compiled.last_path(), len(ours))
"""


def script(source: str, cache, **environment: str) -> str:
    """What a script prints in a process of its own, with a cache of compiled code of its own."""
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(cache), **environment},
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr[-3000:]
    return run.stdout.strip()


def test_two_graphs_a_direction_serve_all_sizes_and_a_second_process_compiles_none(tmp_path):
    assert script(SIZES_SCRIPT, tmp_path).split()[0] == "4"
    assert script(SIZES_SCRIPT, tmp_path).split() == ["4", "0"]


@pytest.mark.parametrize("compiler", ["/no/such/compiler", "/bin/false"])
def test_without_a_working_compiler_it_runs_eagerly_and_says_so_once(tmp_path, compiler):
    assert script(FALLBACK_SCRIPT, tmp_path, CXX=compiler) == "eager 1"


def test_the_compiled_path_is_the_one_that_ran():
    module, query, key, value = inputs()
    attnbench.attend(module, query, key, value, kernel="factorised")
    assert _compiled.last_path() == "compiled"
