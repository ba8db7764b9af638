from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import attnbench
from attnbench.benchmark.workloads import saved
from attnbench.errors import InputsError
from attnbench.saved_inputs import load_inputs, save_inputs

TEXT = (Path(__file__).parents[2] / "LICENSE").read_text()


def some(*shape: Any) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def test_a_layer_of_a_real_model_is_rebuilt_from_what_was_saved_of_it(tmp_path: Path) -> None:
    """The README's way: hook the layer, project, split the heads, save; then put it together."""
    torch.manual_seed(0)
    size, heads = 32, 4
    layer = nn.TransformerEncoderLayer(size, heads, 64, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False).eval()
    words = [line.encode() for line in TEXT.splitlines() if line.strip()][:3]
    length = max(len(word) for word in words)
    tokens = torch.tensor([list(word.ljust(length, b"\0")) for word in words])
    padding = tokens == 0
    assert padding.any()

    attention = model.layers[1].self_attn
    seen = {}

    def capture(module: Any, args: Any, kwargs: Any, output: Any) -> None:
        hidden = args[0]
        parts = nn.functional.linear(hidden, module.in_proj_weight, module.in_proj_bias)
        split = [t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in parts.chunk(3, -1)]
        seen["qkv"], seen["output"] = split, output[0]

    handle = attention.register_forward_hook(capture, with_kwargs=True)
    model(nn.Embedding(256, size)(tokens), src_key_padding_mask=padding)
    handle.remove()

    path = tmp_path / "layer.safetensors"
    save_inputs(path, *seen["qkv"], attn_mask=~padding[:, None, None, :])
    inputs = load_inputs(path)
    pooled = attnbench.attend(
        "scaled_dot", inputs.query, inputs.key, inputs.value, attn_mask=inputs.attn_mask
    )
    rebuilt = attention.out_proj(pooled.transpose(1, 2).flatten(-2))
    torch.testing.assert_close(rebuilt, seen["output"])

    case = saved(path)
    assert case.case.lead == (3, heads)
    assert (case.case.q_len, case.case.value_size, case.case.mask) == (length, 8, "boolean")


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


def test_a_missing_file_is_named() -> None:
    with pytest.raises(InputsError, match=r"no file 'absent\.safetensors'"):
        load_inputs("absent.safetensors")


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100])
def test_a_damaged_file_says_how_to_save_it_again(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputsError, match="not a whole safetensors file"):
        load_inputs(path)


def test_a_file_cut_short_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "cut.safetensors"
    save_inputs(path, *(some(30, 4) for _ in range(3)))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(InputsError, match="not a whole safetensors file"):
        load_inputs(path)


def write(path: Any, **tensors: Any) -> Any:
    save_file(tensors, path)
    return path


def test_a_lacking_tensor_is_named_and_what_is_there_too(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", query=some(3, 4), key=some(3, 4))
    with pytest.raises(InputsError, match="lacks value: it holds key, query"):
        load_inputs(path)


def test_an_unknown_tensor_gets_the_nearest_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.safetensors", query=some(3, 4), keys=some(3, 4), value=some(3, 4))
    with pytest.raises(InputsError, match=r"unknown tensor 'keys'\. Did you mean 'key'"):
        load_inputs(path)


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
    ],
)
def test_tensors_that_do_not_fit_each_other_are_refused(
    tmp_path: Path, changes: Any, complaint: Any
) -> None:
    tensors = {"query": some(2, 3, 4), "key": some(2, 5, 4), "value": some(2, 5, 4), **changes}
    path = write(tmp_path / "a.safetensors", **tensors)
    with pytest.raises(InputsError, match=complaint) as error:
        load_inputs(path)
    assert str(path) in str(error.value)
