from pathlib import Path
from typing import Any

import pytest

import attnbench

FILE = """
import attnbench, torch

class Slow(torch.nn.Module):
    def __init__(self, q, k, v, sign=1.0):
        super().__init__()
        self.gate = torch.nn.Parameter(torch.full((1,), 0.5))
        self.sign = sign

    def forward(self, query, key, value, attn_mask=None):
        scores = (query / query.shape[-1] ** 0.5) @ key.mT
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        return self.gate * scores.softmax(-1) @ value

class Fast(Slow):
    def forward(self, query, key, value, attn_mask=None):
        return self.gate * torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask)

class Off(Fast):
    def forward(self, *args, **given):
        return super().forward(*args, **given) * (1 if torch.is_grad_enabled() else 1.01)

class Other(Fast):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.more = torch.nn.Parameter(torch.ones(1))

def spec(make, **given):
    return attnbench.MechanismSpec(
        name=make.__name__.strip("<>").lower(), make=make, equal_sizes=True,
        dtypes=("float32", "float64"), **given)

SLOW = spec(Slow)
FAST = spec(Fast, same_as=f"{__file__}:SLOW")
OFF = spec(Off, same_as=f"{__file__}:SLOW")
OTHER = spec(Other, same_as=f"{__file__}:SLOW")
class Layer(torch.nn.Module):
    def __init__(self, size):
        super().__init__()
        self.proj = torch.nn.Linear(size, size)
        self.step = 1.0

    def forward(self, hidden, padding_mask=None):
        real = 1.0 if padding_mask is None else padding_mask.unsqueeze(-1).to(hidden)
        mixed = (self.proj(hidden) * real).sum(1, keepdim=True)
        return self.step * hidden.tanh() + mixed.tanh()

class TwiceLayer(Layer):
    def forward(self, hidden, padding_mask=None):
        return super().forward(hidden, padding_mask) * (2 if torch.is_grad_enabled() else 1)

class OffLayer(Layer):
    def __init__(self, size):
        super().__init__(size)
        self.step = 1.001

def layer(make, **given):
    return attnbench.LayerSpec(
        name=make.__name__.lower(), make=make, accepts=("padding_mask",),
        dtypes=("float32", "float64"), **given)

LAYER = layer(Layer)
SAME_LAYER = layer(Layer, same_as=f"{__file__}:LAYER")
OFF_LAYER = layer(OffLayer, same_as=f"{__file__}:LAYER")
TWICE_LAYER = layer(TwiceLayer, same_as=f"{__file__}:LAYER")
class Plain(torch.nn.Module):
    def __init__(self, *sizes, scale=1.0):
        super().__init__()
        self.scale = scale

    def forward(self, query, key, value, attn_mask=None):
        output = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, attn_mask=attn_mask)
        return output * self.scale
PLAIN = spec(Plain, same_as="scaled_dot")
KERNEL = spec(Plain, same_as="scaled_dot/fused")
BENT = spec(lambda *sizes: Plain(*sizes, scale=1.01), same_as="scaled_dot")
MISSING = spec(Fast, same_as="nothing_of_that_name")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "paths.py"
    path.write_text(FILE)
    return path


def outcome(file: Path, name: str) -> Any:
    (found,) = attnbench.check(
        f"{file}:{name}", profile="quick", invariants=["agrees_with_same_as"]
    ).outcomes
    return found


def test_two_paths_of_one_attention_agree(file: Path) -> None:
    assert outcome(file, "FAST").status == "passed"


@pytest.mark.parametrize(
    ("name", "status"), [("PLAIN", "passed"), ("KERNEL", "passed"), ("BENT", "failed")]
)
def test_a_scoring_function_stands_for_its_soft_attention(
    file: Path, name: str, status: str
) -> None:
    assert outcome(file, name).status == status


def test_a_path_that_differs_without_gradients_is_told(file: Path) -> None:
    found = outcome(file, "OFF")
    assert found.status == "failed"
    assert "output of slow" in found.reason
    assert "that of off" in found.reason


def test_a_state_that_the_other_does_not_load_is_an_error(file: Path) -> None:
    found = outcome(file, "OTHER")
    assert found.status == "error"
    assert "slow, which same_as names, does not load this one's state_dict" in found.reason
    assert "more" in found.reason


def test_an_address_that_names_nothing_is_an_error(file: Path) -> None:
    found = outcome(file, "MISSING")
    assert found.status == "error"
    assert "same_as='nothing_of_that_name'" in found.reason


def test_who_names_no_other_is_skipped(file: Path) -> None:
    found = outcome(file, "SLOW")
    assert (found.status, found.reason) == (
        "skipped",
        "names no other subject that it is the same as",
    )


def test_two_layers_of_one_state_agree(file: Path) -> None:
    assert outcome(file, "SAME_LAYER").status == "passed"


def test_a_layer_that_differs_from_the_other_is_told_and_has_a_script(file: Path) -> None:
    found = outcome(file, "OFF_LAYER")
    assert found.status == "failed"
    assert "layer, which same_as names, has" in found.reason
    assert outcome(file, "TWICE_LAYER").reason.startswith("gradient by hidden")
