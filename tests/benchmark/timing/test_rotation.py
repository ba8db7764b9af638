"""Fresh inputs: what changes from call to call, and what stays."""

from __future__ import annotations

import pytest
import torch

from attnbench.benchmark.timing.rotation import FreshCall
from attnbench.benchmark.timing.samples import Samples, fault_of


def call_of(*tensors: torch.Tensor) -> FreshCall:
    """A call that gives its inputs as they are."""
    return FreshCall(lambda argument: argument, tensors, list)


def fresh(call: FreshCall, count: int) -> list[list[torch.Tensor]]:
    call.prepare(count)
    return [call() for _ in range(count)]


@pytest.mark.parametrize("shape", [(2, 3, 16, 8), (1, 1, 12), (2, 1, 5)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_two_calls_get_equal_values(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    call = call_of(*(torch.randn(shape, dtype=dtype) for _ in range(3)))
    seen = set()
    for _ in range(4):
        for tensors in fresh(call, 150):
            assert all(t.shape == shape and t.is_contiguous() for t in tensors)
            assert all(t.dtype == dtype and t.data_ptr() % 64 == 0 for t in tensors)
            seen.add(b"".join(t.float().numpy().tobytes() for t in tensors))
    assert len(seen) == 600


def test_addresses_come_back_with_other_values_and_the_version_of_before() -> None:
    call = call_of(torch.randn(4, 8, 16))
    values: dict[tuple[int, int], torch.Tensor] = {}
    for (tensor,) in fresh(call, 128):
        values[tensor.data_ptr(), tensor._version] = tensor.clone()
    again = fresh(call, 128)
    places = [(tensor.data_ptr(), tensor._version) for (tensor,) in again]
    assert set(places) == set(values)
    pairs = zip(places, again, strict=True)
    assert not any(torch.equal(values[place], tensor) for place, (tensor,) in pairs)


def test_values_are_distributed_as_those_of_the_case() -> None:
    drawn = fresh(call_of(5 + 2 * torch.randn(64, 16)), 100)
    values = torch.stack([tensor for (tensor,) in drawn])
    assert float(values.mean()) == pytest.approx(5, abs=0.5)
    assert float(values.std()) == pytest.approx(2, abs=0.3)


def test_what_is_kept_of_a_call_is_its_inputs_and_its_output_as_they_were() -> None:
    call = FreshCall(lambda tensor: tensor * 2, [torch.randn(3, 4)], lambda t: t[0], leaves=False)
    samples = Samples(call.repeat)
    for _ in range(20):
        call.prepare(5)
        outputs = [call() for _ in range(5)]
        samples.add(outputs[3], lambda: call.inputs_of(3))
    assert len(samples.items) == 6
    assert samples.form_fault() == ""
    assert all(torch.equal(s.copies[0], s.inputs * 2) for s in samples.items)
    samples.items[0].output.add_(1)
    assert "changed after the call had returned" in samples.form_fault()


def test_an_output_that_shares_memory_with_an_input_is_told() -> None:
    tensor = torch.randn(3, 4)
    assert fault_of(tensor * 1, [tensor]) == ""
    assert "shares memory with an input" in fault_of(tensor[:1], [tensor])
    assert "a Parameter, not a plain" in fault_of(torch.nn.Parameter(tensor * 1), [tensor])
