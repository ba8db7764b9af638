"""Every built-in kernel gives what its scoring function gives, forward and backward."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench

KERNELS = [
    "additive/factorised",
    "bilinear/fused",
    "concat_linear/one_row",
    "concat_tanh_sum/factorised",
    "dot/fused",
    "gaussian/differences",
    "scaled_dot/fused",
    "self_additive/one_row",
    "self_tanh/one_row",
    "vector_sum/one_row",
]
MASKS = ["none", "causal", "boolean", "key_row", "padding", "floating", "bias_grad", "expanded"]
SIZES = [((2, 3), 7, 11), ((), 4, 5), ((2, 1, 2), 1, 17)]


def masking(kind: str, lead: tuple[int, ...], q_len: int, kv_len: int) -> dict[str, object]:
    shape = (*lead, q_len, kv_len)
    floating = torch.randn(shape)
    open_ = torch.rand(shape) > 0.4
    found: dict[str, dict[str, object]] = {
        "none": {},
        "causal": {"is_causal": True},
        "boolean": {"attn_mask": open_},
        "key_row": {"attn_mask": open_[..., :1, :]},
        "padding": {"valid_lens": torch.randint(0, kv_len + 1, lead[:1])} if lead else {},
        "floating": {"attn_mask": floating.masked_fill(~open_, -math.inf)},
        "bias_grad": {"attn_mask": floating.requires_grad_()},
        "expanded": {"attn_mask": torch.randn(q_len, kv_len).expand(shape)},
    }
    return found[kind]


def run(
    module: nn.Module, tensors: list[Tensor], kernel: str, dtype: torch.dtype, masks: dict[str, Any]
) -> list[Tensor]:
    """The output, and the gradients of inputs, parameters and mask."""
    module = copy.deepcopy(module).to(dtype)
    inputs = [t.detach().to(dtype).requires_grad_() for t in tensors]
    wanted = [*inputs, *module.parameters()]
    mask = masks.get("attn_mask")
    if mask is not None and mask.is_floating_point():
        mask = mask.detach().to(dtype).requires_grad_(mask.requires_grad)
        masks = {**masks, "attn_mask": mask}
        wanted += [mask] * mask.requires_grad
    output = attnbench.attend(module, *inputs, kernel=kernel, **masks)
    upstream = torch.linspace(-1, 1, output.numel(), dtype=dtype).view_as(output)
    return [output, *torch.autograd.grad(output, wanted, upstream)]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("address", KERNELS)
def test_kernel_and_plain_path_agree_in_output_and_all_gradients(
    address: Any, mask: Any, sizes: Any
) -> None:
    torch.manual_seed(0)
    scoring, kernel = address.split("/")
    lead, q_len, kv_len = sizes
    spec = attnbench.get(scoring)
    key_size = 6 if spec.equal_sizes else 5
    module = spec.make(6, key_size)
    tensors = [
        torch.randn(*lead, q_len, 6),
        torch.randn(*lead, kv_len, key_size),
        torch.randn(*lead, kv_len, 3),
    ]
    masks = masking(mask, lead, q_len, kv_len)
    expected = run(module, tensors, "plain", torch.float64, masks)
    for dtype, tolerance in ((torch.float32, 2e-5), (torch.float64, 1e-12)):
        for got, wanted in zip(run(module, tensors, kernel, dtype, masks), expected, strict=True):
            assert got.dtype == dtype
            torch.testing.assert_close(got.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("address", KERNELS)
def test_auto_takes_the_kernel_and_plain_serves_dropout(address: Any) -> None:
    scoring, kernel = address.split("/")
    module = attnbench.get(scoring).make(4, 4)
    query, key, value = torch.randn(3, 2, 5, 4)
    auto = attnbench.attend(module, query, key, value)
    assert torch.equal(auto, attnbench.attend(module, query, key, value, kernel=kernel))
    with pytest.raises(attnbench.UsageError, match="dropout"):
        attnbench.attend(module, query, key, value, kernel=kernel, dropout_p=0.5)
    attnbench.attend(module, query, key, value, dropout_p=0.5)


def test_kernels_refuse_a_device_on_which_nothing_was_tried() -> None:
    spec = attnbench.get("additive")
    case = attnbench.Case(
        lead=(1,), q_len=2, kv_len=2, query_size=4, key_size=4, value_size=4,
        dtype="float32", device="xpu", mask="none",
    )  # fmt: skip
    from attnbench.attention.dispatch import choices

    assert all("xpu" in str(choice.reason) for choice in choices(spec, case))


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # torch's, of its own operator
def test_the_gaussian_kernel_runs_under_vmap_with_parameters_that_are_trained() -> None:
    module = attnbench.get("gaussian").make(4, 4)
    tensors = [torch.randn(2, 3, 4) for _ in range(3)]
    got = torch.func.vmap(lambda *given: attnbench.attend(module, *given, kernel="differences"))(
        *tensors
    )
    torch.testing.assert_close(got, attnbench.attend(module, *tensors, kernel="plain"))


def test_a_huge_key_hidden_from_some_queries_does_not_blur_the_others() -> None:
    module = attnbench.get("gaussian").make(4, 4)
    query, key, value = torch.randn(3, 1, 6, 4).double()
    key[0, 5] = 1e6
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:5, 5] = False
    expected = attnbench.attend(module.double(), query, key, value, attn_mask=mask, kernel="plain")
    module, query, key, value = module.float(), query.float(), key.float(), value.float()
    got = attnbench.attend(module, query, key, value, attn_mask=mask, kernel="differences")
    torch.testing.assert_close(got[:, :5].double(), expected[:, :5], rtol=1e-5, atol=1e-5)


def test_keys_near_a_query_and_far_from_all_others_are_told_apart() -> None:
    module = attnbench.get("gaussian").make(1, 1)
    query = torch.tensor([[1000.25], [-1000.25], [0.0]])
    key = torch.tensor([[1000.125], [1001.5], [-1000.5], [-1001.0]])
    value = torch.eye(4)
    expected = attnbench.attend(module.double(), *(t.double() for t in (query, key, value)))
    got = attnbench.attend(module.float(), query, key, value, kernel="differences")
    torch.testing.assert_close(got.double(), expected, rtol=1e-6, atol=1e-6)


def test_a_bandwidth_of_each_feature_has_the_gradients_of_the_plain_path() -> None:
    torch.manual_seed(0)
    module = attnbench.get("gaussian").make(5, 5, per_feature=True)
    torch.nn.init.uniform_(module.bandwidth, 0.2, 1.5)
    tensors = [torch.randn(2, length, 5, requires_grad=True) for length in (4, 7, 7)]

    def run(kernel: Any) -> Any:
        output = attnbench.attend(module, *tensors, kernel=kernel)
        return output, *torch.autograd.grad(output.square().sum(), (*tensors, module.bandwidth))

    for got, expected in zip(run("differences"), run("plain"), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
