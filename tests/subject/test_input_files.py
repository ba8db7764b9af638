from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from attnbench.benchmark.workloads import saved
from attnbench.errors import InputsError
from attnbench.saved_inputs import load_inputs, save_inputs


def some(*shape: Any) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_all_that_can_be_saved_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "all.safetensors"
    q, k, v = some(2, 4, 3, 8), some(2, 2, 5, 6), some(2, 2, 5, 7)
    lens = torch.tensor([2, 5])
    save_inputs(path, q.mT.contiguous().mT, k, v, valid_lens=lens, is_causal=True)
    inputs = load_inputs(path)
    assert torch.equal(inputs.query, q)
    assert torch.equal(inputs.value, v)
    assert torch.equal(inputs.valid_lens, lens)
    assert inputs.is_causal
    assert inputs.enable_gqa
    assert saved(path).kv_heads == 2


def test_two_files_of_the_same_shapes_are_two_cases(tmp_path: Path) -> None:
    ids = []
    for number in range(2):
        path = tmp_path / f"{number}.safetensors"
        save_inputs(path, *(some(3, 4) + number for _ in range(3)))
        ids.append(saved(path).id)
    assert ids[0] != ids[1]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"query": torch.ones(2, 3, 4, dtype=torch.int64)}, "floating-point"),
        ({"query": some(4)}, "two dimensions"),
        ({"key": some(2, 5, 4).double()}, "mixed dtypes"),
        ({"value": some(2, 6, 4)}, "each key has one value"),
        ({"query": some(3, 3, 4)}, "leading sizes"),
        ({"query": some(2, 0, 4)}, "nothing to attend to"),
        ({"attn_mask": torch.ones(3, 4, dtype=torch.bool)}, "attn_mask has shape"),
        ({"valid_lens": torch.tensor([1, 9])}, "valid_lens holds 9"),
        ({"value": None}, "lacks value: it holds key, query"),
        ({"key": None, "keys": some(2, 5, 4)}, r"unknown tensor 'keys'\. Did you mean 'key'"),
    ],
)
def test_tensors_that_do_not_fit_each_other_are_refused(
    tmp_path: Path, changes: Any, complaint: Any
) -> None:
    tensors = {"query": some(2, 3, 4), "key": some(2, 5, 4), "value": some(2, 5, 4), **changes}
    path = tmp_path / "a.safetensors"
    save_file({name: tensor for name, tensor in tensors.items() if tensor is not None}, path)
    with pytest.raises(InputsError, match=complaint) as error:
        load_inputs(path)
    assert str(path) in str(error.value)
