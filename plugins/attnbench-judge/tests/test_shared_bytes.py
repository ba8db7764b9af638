"""Tensors in shared memory."""

from collections.abc import Iterator

import pytest
import torch
from attnbench_judge.process.shared_bytes import SharedBytes

from attnbench.errors import ShapeError


@pytest.fixture
def shared() -> Iterator[SharedBytes]:
    found = SharedBytes(1 << 16)
    yield found
    found.close()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(24.0).view(4, 6)[1:3, ::2],
        torch.arange(24).view(4, 6).mT,
        torch.arange(4).half().view(1, 4, 1).expand(3, 4, 5),
        torch.arange(20.0).as_strided((4, 5), (2, 1)),  # rows overlap
        torch.tensor([float("nan"), -0.0]),
        torch.tensor(True),
        torch.empty(0, 3),
    ],
)
def test_what_is_written_is_read_there_with_its_strides(
    shared: SharedBytes, tensor: torch.Tensor
) -> None:
    ((told, own, there),) = shared.laid_out([tensor])
    there.copy_(own)
    dtype, shape, strides, offset, count, before = told
    assert before == tensor.storage_offset()
    first, last = offset, offset + count * tensor.element_size()
    flat = shared.bytes[first:last].view(getattr(torch, dtype))
    assert torch.equal(own, there)
    found = flat.as_strided(shape, strides, before) if count else torch.empty(shape)
    torch.testing.assert_close(found, tensor, rtol=0, atol=0, equal_nan=True, check_dtype=count > 0)


def test_views_of_one_storage_stay_so(shared: SharedBytes) -> None:
    whole, other = torch.arange(24.0).view(4, 6), torch.ones(3)
    placed = shared.laid_out([whole[2:], whole[..., :2], other, whole[2:]])
    for _, own, there in placed:
        there.copy_(own)
    first, second, third, fourth = (told for told, *_ in placed)
    assert first[3] == second[3] != third[3]
    assert fourth == first
    assert torch.equal(shared.bytes[first[3] :].view(torch.float32)[12:24], whole[2:].flatten())


def test_inputs_that_do_not_fit_are_told() -> None:
    shared = SharedBytes(1 << 12)
    with pytest.raises(ShapeError, match="use smaller cases"):
        shared.laid_out([torch.zeros(1 << 12)])
    shared.close()


@pytest.mark.parametrize("dtype", ["complex64", 3, {"a": 1}])
def test_only_plain_dtypes_are_known(shared: SharedBytes, dtype: object) -> None:
    assert shared.claimed("float32", [2, 3]).shape == (2, 3)
    with pytest.raises(ValueError, match="without shape and dtype of a tensor"):
        shared.claimed(dtype, [2, 3])


@pytest.mark.parametrize("shape", [None, [-1], [True], [2.0], [1] * 17])
def test_a_shape_that_no_tensor_has_is_refused(shared: SharedBytes, shape: object) -> None:
    with pytest.raises(ValueError, match="without shape and dtype of a tensor"):
        shared.claimed("float32", shape)
    for large in ([1 << 14], [1 << 39, 1 << 39, 0]):
        with pytest.raises(ValueError, match="claims the shape"):
            shared.claimed("float32", large)
