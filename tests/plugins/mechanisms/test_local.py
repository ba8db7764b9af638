"""Mechanisms that look at a few neighbouring keys: local (monotonic, predictive) and key-value."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnbench
from attnbench.benchmark.memory import peak_bytes
from attnbench.errors import OptionError, ShapeError
from attnbench.oracle.references import Reference
from attnbench.subject.lookup import resolve

LOCAL = ["local_monotonic", "local_predictive", "key_value"]


def made(name: str, size: int = 4, **options: object) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(size, size, size, **options).double().eval()


def tensors(*lead: int, q_len: int = 7, kv_len: int = 7, size: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [
        torch.randn(*lead, n, size, generator=generator).double() for n in (q_len, kv_len, kv_len)
    ]


def test_local_monotonic_equals_soft_under_a_window_mask() -> None:
    module, given = made("local_monotonic", window=2), tensors(2, 3)
    slots = torch.arange(7)
    mask = (slots - slots.unsqueeze(-1)).abs() <= 2
    output, weights = module(*given, return_weights=True)
    expected = attnbench.attend(module.scoring, *given, attn_mask=mask, return_weights=True)
    torch.testing.assert_close(output, expected[0])
    torch.testing.assert_close(weights, expected[1])


@pytest.mark.parametrize("scoring", ["additive", "gaussian", "vector_sum"])
@pytest.mark.parametrize("name", LOCAL)
def test_any_scoring_function_can_serve(name: Any, scoring: Any) -> None:
    subject = resolve(f"{name}(scoring={scoring})")[0]
    case = subject.legal(attnbench.Case((2,), 6, 6, 4, 4, 3, dtype="float64", mask="padding"))
    module, inputs = subject.build(case)
    output = subject.output(module, inputs)
    reference = Reference(subject, module, inputs)
    expected = reference.scalar(reference.rows())
    torch.testing.assert_close(output, expected.reshape(output.shape))


def test_the_position_is_scaled_where_lengths_differ() -> None:
    _, weights = made("local_monotonic", window=0)(*tensors(q_len=3, kv_len=9), return_weights=True)
    assert weights.argmax(-1).tolist() == [1, 4, 7]


def test_a_window_of_zero_leaves_one_key() -> None:
    query, key, value = tensors(2)
    assert torch.equal(made("local_monotonic", window=0)(query, key, value), value)


@pytest.mark.parametrize("name", LOCAL)
@pytest.mark.parametrize("window", [-1, 0])
def test_a_window_that_cannot_be_is_an_error(name: Any, window: Any) -> None:
    if (name, window) == ("local_monotonic", 0):
        return
    with pytest.raises(OptionError, match=f"{name}: window={window}.* at.least"):
        made(name, window=window)


def test_local_predictive_follows_its_formula_written_out_densely() -> None:
    module, (query, key, value) = made("local_predictive", window=3), tensors(2)
    p = 7 * (query @ module.position_proj.weight.T).tanh().matmul(module.position_vector).sigmoid()
    distance = torch.arange(7) - p.unsqueeze(-1)
    soft = module.scoring(query, key).masked_fill(distance.abs() > 3, -torch.inf).softmax(-1)
    weights = soft * torch.exp(-(distance**2) / (2 * 1.5**2))
    torch.testing.assert_close(module(query, key, value), weights @ value)


def test_the_predicted_position_is_reached_by_a_gradient() -> None:
    module = made("local_predictive")
    module(*tensors(2)).sum().backward()
    assert (module.position_proj.weight.grad != 0).any()
    assert (module.position_vector.grad != 0).any()


def test_key_value_follows_the_papers_equations() -> None:
    module, (key, _, value) = made("key_value", window=3), tensors()
    w_h, w_y = module.scoring.query_proj.weight, module.scoring.key_proj.weight
    w, w_r, w_x = module.scoring.score_vector, module.read_proj.weight, module.value_proj.weight
    output = module(key, key, value)
    for t in range(7):
        first = max(0, t - 3)
        read = torch.zeros(4).double()
        if t:
            m = torch.tanh(w_y @ key[first:t].T + (w_h @ key[t]).unsqueeze(-1))
            read = value[first:t].T @ (w @ m).softmax(-1)
        torch.testing.assert_close(output[t], torch.tanh(w_r @ read + w_x @ value[t]))


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
