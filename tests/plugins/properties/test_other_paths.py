import re
from pathlib import Path

import pytest

import attnbench
from tests.invariant_runs import run

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

    def forward(self, hidden, padding_mask=None):
        real = 1.0 if padding_mask is None else padding_mask.unsqueeze(-1).to(hidden)
        mixed = (self.proj(hidden) * real).sum(1, keepdim=True)
        return hidden.tanh() + mixed.tanh()

class TwiceLayer(Layer):
    def forward(self, hidden, padding_mask=None):
        return super().forward(hidden, padding_mask) * (2 if torch.is_grad_enabled() else 1)

def layer(make, **given):
    return attnbench.LayerSpec(
        name=make.__name__.lower(), make=make, accepts=("padding_mask",),
        dtypes=("float32", "float64"), **given)

LAYER = layer(Layer)
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


def outcome(file: Path, name: str) -> attnbench.Outcome:
    return run(f"{file}:{name}", "agrees_with_same_as", shrink=True)


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("FAST", "passed"),
        ("PLAIN", "passed"),  # a scoring function stands for its soft attention
        ("KERNEL", "passed"),
        ("BENT", "failed"),
    ],
)
def test_two_paths_of_one_attention_agree(file: Path, name: str, status: str) -> None:
    assert outcome(file, name).status == status


@pytest.mark.parametrize(
    ("name", "status", "told"),
    [
        ("OFF", "failed", "output of slow.*that of off"),  # without gradients
        (
            "OTHER",
            "error",
            "slow, which same_as names, does not load this one's state_dict.*more",
        ),
        ("MISSING", "error", "same_as='nothing_of_that_name'"),
        ("SLOW", "skipped", "^names no other subject that it is the same as$"),
        ("TWICE_LAYER", "failed", "^gradient by hidden"),
    ],
)
def test_paths_that_differ_or_cannot_be_compared_are_told(
    file: Path, name: str, status: str, told: str
) -> None:
    found = outcome(file, name)
    assert found.status == status
    assert re.search(told, found.reason, re.DOTALL), found.reason
