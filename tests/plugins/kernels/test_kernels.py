"""Every built-in kernel gives what its scoring function gives, forward and backward."""

from typing import Any

import pytest
import torch

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
