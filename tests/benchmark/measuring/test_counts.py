from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.measuring.counts import count
from attnbench.benchmark.measuring.measured_calls import measured_call
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve

CASE = Case((2, 3), 16, 24, 8, 8, 4)


def call_of(name: Any, direction: Any = "forward") -> Any:
    (subject,) = resolve(name)
    module, inputs = BenchCase(CASE, direction).build(subject)
    return measured_call(subject, module, inputs, direction)


@pytest.mark.parametrize("name", ["scaled_dot", "dot", "bilinear", "gaussian"])
def test_matrix_products_are_those_that_torch_counts(name: Any) -> None:
    call = call_of(name)
    with FlopCounterMode(display=False) as counter:
        call()
    assert count(call).matmul_operations == counter.get_total_flops()


def test_the_counts_of_scaled_dot_are_those_of_its_formula() -> None:
    found = count(call_of("scaled_dot"))
    assert found.matmul_operations == 2 * 6 * 16 * 24 * (8 + 4)


def test_a_backward_call_has_twice_the_products_more() -> None:
    forward = count(call_of("scaled_dot")).matmul_operations
    assert count(call_of("scaled_dot", "forward_backward")).matmul_operations == 3 * forward


def test_a_matrix_times_a_vector_counts_though_torch_does_not_count_it() -> None:
    matrix, vector = torch.ones(5, 7), torch.ones(7)
    found = count(lambda: matrix @ vector)
    assert found.matmul_operations == 70


def test_fused_attention_counts_its_two_products() -> None:
    q, k, v = torch.ones(2, 3, 16, 8), torch.ones(2, 3, 24, 8), torch.ones(2, 3, 24, 8)
    found = count(lambda: functional.scaled_dot_product_attention(q, k, v))
    assert found.matmul_operations == 2 * 6 * 16 * 24 * (8 + 8)


def test_moving_data_is_no_operation() -> None:
    x = torch.ones(10, 10)
    found = count(lambda: torch.cat([x.clone(), x]))
    assert found.matmul_operations == 0
