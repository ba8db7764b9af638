"""What ``attnbench.record`` saves, compared with what the model computes."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnbench
from attnbench.errors import InputsError
from attnbench.saved_inputs import load_inputs

_attend = nn.functional.scaled_dot_product_attention  # a name of its own, as many models have


class _Calls(nn.Module):
    """Calls torch's function with given arguments, and keeps the output."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given

    def forward(self, *tensors: Tensor) -> Tensor:
        return _attend(*tensors, **self.given)


def _tensors(heads: int = 4, q_len: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = [(2, 4, q_len, 8), (2, heads, 5, 8), (2, heads, 5, 6)]
    return [torch.randn(shape, generator=generator) for shape in shapes]


_MASK = torch.ones(3, 5, dtype=torch.bool).tril(1)


@pytest.mark.parametrize(
    ("given", "heads", "q_len"),
    [
        ({}, 4, 3),
        ({"is_causal": True}, 4, 3),
        ({"is_causal": True}, 4, 5),
        ({"attn_mask": _MASK}, 4, 3),
        ({"attn_mask": _MASK.float()}, 4, 3),
        ({"scale": 1.0}, 4, 3),
        ({"enable_gqa": True}, 2, 3),
        ({}, 1, 3),
    ],
)
def test_saved_inputs_give_the_output_of_the_call(
    tmp_path: Path, given: dict[str, Any], heads: int, q_len: int
) -> None:
    module = _Calls(**given)
    with attnbench.record(module, tmp_path) as files:
        expected = module(*_tensors(heads, q_len))
    saved = load_inputs(files[0])
    output = attnbench.attend(
        "scaled_dot",
        *(saved.query, saved.key, saved.value),
        attn_mask=saved.attn_mask,
        is_causal=saved.is_causal,
        enable_gqa=saved.enable_gqa,
    )
    torch.testing.assert_close(output, expected)


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("training", [True, False])
def test_multihead_attention_is_saved_after_its_projection(
    tmp_path: Path, need_weights: bool, training: bool
) -> None:
    module = nn.MultiheadAttention(8, 2, batch_first=True, dropout=0.5).train(training)
    module.out_proj = nn.modules.linear.NonDynamicallyQuantizableLinear(8, 8, bias=False)
    nn.init.eye_(module.out_proj.weight)
    hidden = torch.randn(2, 5, 8)
    padding = torch.arange(5) >= torch.tensor([[5], [3]])
    torch.manual_seed(0)
    expected, _ = module(
        hidden, hidden, hidden, key_padding_mask=padding, need_weights=need_weights
    )
    torch.manual_seed(0)
    with attnbench.record(module, tmp_path) as files:
        got, _ = module(hidden, hidden, hidden, key_padding_mask=padding, need_weights=need_weights)
    assert len(files) == 1
    torch.testing.assert_close(got, expected)  # the same numbers are drawn for dropout
    saved = load_inputs(files[0])
    plain = _attend(saved.query, saved.key, saved.value, attn_mask=saved.attn_mask)
    assert saved.attn_mask is not None
    assert bool((saved.attn_mask[1, ..., 3:] == -math.inf).all())
    if not training:
        torch.testing.assert_close(plain.transpose(1, 2).flatten(-2), expected)


def test_only_what_the_module_calls_is_saved(tmp_path: Path) -> None:
    module = _Calls()
    with attnbench.record(module, tmp_path) as files:
        _attend(*_tensors())
        module(*_tensors())
        _attend(*_tensors())
    module(*_tensors())
    assert files == [tmp_path / "000.safetensors"]
    assert list(tmp_path.iterdir()) == files


def test_a_model_without_attention_is_an_error(tmp_path: Path) -> None:
    with (
        pytest.raises(InputsError, match="Linear called neither"),
        attnbench.record(nn.Linear(2, 2), tmp_path),
    ):
        pass


def test_a_folder_of_an_earlier_record_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "000.safetensors").touch()
    with (
        pytest.raises(InputsError, match="choose another folder"),
        attnbench.record(nn.Linear(2, 2), tmp_path),
    ):
        pass
