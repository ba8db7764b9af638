"""The pairwise kernels where they are special: their guards, their blocks, their loops."""

from typing import Any

import pytest
import torch
from attnbench_kernels import library, native, pairwise, sums
from attnbench_kernels.kernels import additive

import attnbench
from attnbench.benchmark.memory import peak_bytes
from tests.attention_functions import with_gradient


def inputs(q_len: Any = 5, kv_len: Any = 7, lead: Any = (2,), **options: Any) -> Any:
    torch.manual_seed(0)
    module = attnbench.get("additive").make(6, 5, **options)
    return (
        module,
        torch.randn(*lead, q_len, 6),
        torch.randn(*lead, kv_len, 5),
        torch.randn(*lead, kv_len, 4),
    )


@pytest.fixture(params=["native", "eager"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The loops' path: the compiled library, or torch's operations as without it."""
    if request.param == "eager":
        monkeypatch.setattr(library, "library", lambda: None)
    yield request.param
    assert sums.Status.path == request.param


REGIMES = {  # sizes of a and b, and how far both are from the origin
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


def sides(
    regime: Any,
    units: Any,
    squares: Any,
    dtype: Any = torch.float32,
    items: Any = 2,
    kv_len: Any = 200,
) -> Any:
    """``a``, ``b`` and ``w``; far from the origin, yet near each other as the function sees it."""
    torch.manual_seed(0)
    a_size, b_size, offset = REGIMES[regime]
    a = torch.randn(items, 19, units) * a_size + offset
    b = torch.randn(items, kv_len, units) * b_size + (offset if squares else -offset)
    w = torch.randn(items, units) / (0.39 * units) ** 0.5
    w[:, units // 2] = 0.0
    if squares:  # negative, as of a bandwidth; mostly one for all
        w = -w.abs() if units == 33 else -w[:, :1].abs().expand(-1, units)
    return tuple(t.to(dtype) for t in (a, b, w))


def pairs(a: Any, b: Any, w: Any, squares: Any) -> Any:
    """The function's value of each pair and unit, its slope in ``a``, and the weights."""
    a, b, w = a[:, :, None], b[:, None], w[:, None, None]
    if squares:
        value, slope = (a - b).square(), 2 * (a - b)
    else:
        value = (a + b).tanh()
        slope = 1 - value * value
    return value, slope * w, (value * w).sum(-1).softmax(-1)


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("units", [1, 3, 16, 33, 128])
@pytest.mark.parametrize("regime", REGIMES)
def test_weights_are_as_exact_as_the_plain_form_in_float32(
    regime: Any, units: Any, squares: Any, path: Any
) -> None:
    a, b, w = sides(regime, units, squares, items=16, kv_len=23)
    got = a.new_empty(*a.shape[:2], b.shape[1])
    sums.attend(a, b, w, None, b.shape[1], squares, weights=got)
    expected = pairs(*(t.double() for t in (a, b, w)), squares)[2]
    plain = pairs(a, b, w, squares)[2]
    # relative to each weight, for none may be lost
    seen = expected > 1e-30
    ours, theirs = ((t.double() / expected - 1)[seen].square().mean() for t in (got, plain))
    assert ours.sqrt() <= 2 * theirs.sqrt() + 1e-6


@pytest.mark.parametrize("squares", [False, True])
@pytest.mark.parametrize("units", [1, 5, 16, 33])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_slopes_are_as_exact_as_the_plain_form(
    regime: Any, units: Any, dtype: Any, squares: Any, path: Any
) -> None:
    a, b, w = sides(regime, units, squares, dtype)
    g = torch.randn(2, 19, 200, dtype=dtype)
    g -= g.mean(-1, keepdim=True)

    def plain(a: Any, b: Any, w: Any, g: Any) -> Any:
        value, slope, _ = pairs(a, b, w, squares)
        slope = slope * g[..., None]
        return (
            slope.sum(2),
            slope.sum(1) * (-1 if squares else 1),
            (g[..., None] * value).sum((1, 2)),
        )

    grad_a = torch.empty_like(a)
    got = grad_a, *sums.slopes(g, a, b, w, 200, squares, grad_a)
    expected = plain(*(t.double() for t in (a, b, w, g)))
    for ours, theirs, true in zip(got, plain(a, b, w, g), expected, strict=True):
        error = (theirs.double() - true).abs().max()
        ulp = torch.finfo(dtype).eps * g.abs().sum() ** 0.5
        size = max(1.0, pairs(a, b, w, squares)[0].max().item())
        assert (ours.double() - true).abs().max() <= 2 * error + 8 * ulp * size


def test_a_block_too_wide_for_exponentials_takes_tanh_and_the_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sums, "_FUSED_PAIRS", 8 * 16)
    module, query, key, value = inputs(q_len=32, kv_len=16, lead=(1,))
    query[0, :8], key[0, ::2] = query[0, :8] * 1e3, key[0, ::2] * 1e3
    real, forms = native.attend, []

    def noted(a: Any, b: Any, w: Any, mask: Any, visible: Any, form: Any, *others: Any) -> Any:
        forms.append(form)
        return real(a, b, w, mask, visible, form, *others)

    monkeypatch.setattr(native, "attend", noted)
    got = attnbench.attend(module, query, key, value, kernel="factorised")
    assert forms == [native.Form.TANH, *[native.Form.QUOTIENT] * 3]
    torch.testing.assert_close(
        got, attnbench.attend(module, query, key, value, kernel="plain"), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("kept", [0, 2**23])
@pytest.mark.parametrize("pairs", [1, 100, 300])
@pytest.mark.parametrize("causal", [False, True])
def test_blocks_change_nothing(
    monkeypatch: pytest.MonkeyPatch, causal: Any, pairs: Any, kept: Any
) -> None:
    module, query, key, value = inputs(q_len=20, kv_len=33, lead=(2, 2))
    query.requires_grad_()
    key.requires_grad_()

    def run() -> Any:
        output = attnbench.attend(module, query, key, value, kernel="factorised", is_causal=causal)
        return output, *torch.autograd.grad(output.square().sum(), (query, key))

    whole = run()
    monkeypatch.setattr(sums, "_FUSED_PAIRS", pairs)
    monkeypatch.setattr(pairwise, "KEPT_PAIRS", kept)
    for got, expected in zip(run(), whole, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("threads", [2, 5])
def test_threads_change_nothing_but_rounding(threads: Any) -> None:
    torch.manual_seed(0)
    a, b, value = torch.randn(1, 130, 20), torch.randn(1, 150, 20), torch.randn(1, 150, 7)
    leaves = [t.requires_grad_() for t in (a, b, torch.randn(20), value)]

    def run() -> Any:
        output = pairwise.pairwise_attention(*leaves, None, False)
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


def test_long_sequences_need_no_tensor_of_all_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    size, units = 2048, 16
    torch.manual_seed(0)
    a, b, w = torch.randn(1, size, units), torch.randn(1, size, units), torch.randn(units)
    value = torch.randn(1, size, 8)
    leaves = [t.requires_grad_() for t in (a, b, w, value)]
    monkeypatch.setattr(sums, "_FUSED_PAIRS", 2**17)
    monkeypatch.setattr(pairwise, "KEPT_PAIRS", 0)

    def both() -> None:
        output = pairwise.pairwise_attention(a, b, w, value, None, False)
        torch.autograd.grad(output.sum(), leaves)

    both()
    assert peak_bytes(both, torch.device("cpu")) < size * size * 4 / 2


def test_under_the_transforms_of_torch_attend_takes_the_plain_form() -> None:
    module, query, key, value = inputs(lead=(3,))
    gradient = torch.func.grad(lambda *call: attnbench.attend(module, *call).square().sum())
    got = torch.vmap(gradient)(query, key, value)
    for item in range(3):
        alone = gradient(query[item], key[item], value[item])
        torch.testing.assert_close(got[item], alone, rtol=1e-4, atol=1e-4)
    with pytest.raises(attnbench.errors.RefusalError, match="cannot see inside"):
        torch.vmap(lambda *call: attnbench.attend(module, *call, kernel="factorised"))(
            query, key, value
        )


class _Call(torch.nn.Module):
    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, query: Any, key: Any, value: Any, mask: Any = None) -> Any:
        return additive(self.module, query, key, value, mask)


def test_it_sits_in_a_compiled_and_in_an_exported_model() -> None:
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


def test_what_gets_no_gradient_gives_none() -> None:
    module, query, key, value = inputs()
    key.requires_grad_()
    output = attnbench.attend(module, query, key, value, kernel="factorised")
    ungraded = with_gradient(lambda gradient: None)(output)
    (found,) = torch.autograd.grad(ungraded.sum(), key, allow_unused=True)
    assert found is None
