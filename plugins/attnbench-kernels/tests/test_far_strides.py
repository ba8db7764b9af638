"""The C++ loops where rows lie further apart than an index of 32 bits can count."""

from typing import Any

import pytest
import torch
from attnbench_kernels import library, native
from attnbench_kernels.native import Form

STEP = 2**31 + 64
ROWS, SLOTS, WIDTH = 3, 5, 7


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A file with holes: it spans 40 GiB, and takes the pages that are written to."""
    path = tmp_path_factory.mktemp("far") / "room"
    return torch.from_file(str(path), shared=True, size=SLOTS * STEP, dtype=torch.float32)


def far(room: Any, tensor: Any, place: int) -> Any:
    """The tensor, its rows ``STEP`` apart, and its last axis at a place of its own."""
    found = room.as_strided(tensor.shape, (16, STEP, 1), 32 * place)
    found.copy_(tensor)
    return found


@pytest.mark.parametrize("form", list(Form))
def test_rows_two_thousand_million_numbers_apart_are_read_and_written_where_they_lie(
    room: Any, form: Any
) -> None:
    if library.library() is None:
        pytest.skip("there is no compiler")
    torch.manual_seed(0)
    a, b = torch.randn(1, ROWS, WIDTH), torch.randn(1, SLOTS, WIDTH)
    w, value = torch.randn(1, WIDTH), torch.randn(1, SLOTS, WIDTH)
    g, mask = torch.randn(1, ROWS, SLOTS), torch.randn(1, ROWS, SLOTS)
    reach = float(a.abs().max() + b.abs().max())

    def run(*given: Any) -> tuple[Any, ...]:
        a, b, value, g, mask, output, weights, grad_a = given
        native.attend(a, b, w, mask, SLOTS, form, reach, value, output, weights)
        return output, weights, grad_a, *native.slopes(g, a, b, w, SLOTS, form, reach, grad_a)

    to = torch.zeros(1, ROWS, WIDTH), torch.zeros_like(g), torch.zeros_like(a)
    given = (a, b, value, g, mask, *to)
    expected = run(*(t.clone() for t in given))
    got = run(*(far(room, t, place) for place, t in enumerate(given)))
    assert got[0].stride(1) == STEP
    for ours, near in zip(got, expected, strict=True):
        assert near.abs().max() > 0
        torch.testing.assert_close(ours, near, rtol=0, atol=0)
