"""Tensors in shared memory."""

import os

import pytest
import torch

from attnbench.errors import ShapeError
from attnbench.judging.shared_bytes import SharedBytes, bytes_of, dtype_named


def test_bytes_span_a_strided_tensor() -> None:
    whole = torch.arange(24.0).view(4, 6)
    flat, count = bytes_of(whole[1:3, ::2])
    assert count == 1 + 6 + 2 * 2
    assert torch.equal(flat.view(torch.float32), whole.flatten()[6 : 6 + count])


def test_equal_shapes_lie_at_equal_places() -> None:
    shared = SharedBytes(1 << 16)
    first, second = (
        [told for told, _, _ in shared.laid_out([torch.randn(3, 5), torch.ones(4).bool()])]
        for _ in range(2)
    )
    assert first == second
    assert [told[3] % 64 for told in first] == [0, 0]
    shared.close()


def test_nobody_can_cut_the_memory() -> None:
    shared = SharedBytes(1 << 16)
    with pytest.raises(PermissionError):
        os.ftruncate(shared.file, 0)
    shared.close()


def test_inputs_that_do_not_fit_are_told() -> None:
    shared = SharedBytes(1 << 12)
    with pytest.raises(ShapeError, match="use smaller cases"):
        shared.laid_out([torch.zeros(1 << 12)])
    shared.close()


def test_only_plain_dtypes_are_known() -> None:
    assert dtype_named("float32") is torch.float32
    assert dtype_named("complex64") is dtype_named(3) is dtype_named({"a": 1}) is None
