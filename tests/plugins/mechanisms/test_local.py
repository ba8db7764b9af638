"""Mechanisms that look at a few neighbouring keys: local (monotonic, predictive) and key-value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from attnbench.benchmark.memory import peak_bytes
from attnbench.errors import OptionError, ShapeError

LOCAL = ["local_monotonic", "local_predictive", "key_value"]


def made(name: str, size: int = 4, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(size, size, size, **options).double().eval()


def tensors(*lead: int, q_len: int = 7, kv_len: int = 7, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(*lead, n, size, generator=generator).double() for n in (q_len, kv_len, kv_len)
    ]


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("window", [-1, 0])
def test_a_window_that_cannot_be_is_an_error(name: Any, window: Any) -> None:
    if (name, window) == ("local_monotonic", 0):
        return
    with pytest.raises(OptionError, match=f"{name}: window={window}.* at.least"):
        made(name, window=window)


def test_key_value_of_unequal_lengths_is_an_error() -> None:
    with pytest.raises(
        ShapeError, match="self-attention, but the query has length 3 and the key 7"
    ):
        made("key_value")(*tensors(q_len=3))


@pytest.mark.parametrize("name", LOCAL)
def test_memory_grows_with_the_length_and_not_with_its_square(name: Any) -> None:
    def peak(length: int) -> int:
        module, given = made(name), tensors(1, q_len=length, kv_len=length)
        given[0].requires_grad_()
        return peak_bytes(lambda: module(*given).sum().backward(), torch.device("cpu"))

    assert peak(1024) < 5 * peak(256)  # 16 times, were it L·S
