"""Which style fits a callee is told by its signature, and what to write where none does."""

import contextlib
import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import attnbench
from attnbench import adapters
from attnbench.errors import StyleError
from attnbench.subject.lookup import resolve
from tests.attention_functions import flashlike


@pytest.mark.parametrize(
    ("function", "style", "message"),
    [
        (flashlike, "multihead", "it has no argument embed_dim. Its arguments fit sdpa on"),
        (scaled_dot_product_attention, "flash", "its argument is_causal belongs to another style"),
        (lambda query, key: query, "sdpa", "argument 3 should be value"),
        (3, "sdpa", "is of type int, which is not callable|cannot be called as sdpa"),
    ],
)
def test_a_style_that_does_not_fit_says_what_is_missing(
    function: Any, style: str, message: str
) -> None:
    with pytest.raises(StyleError, match=message):
        getattr(adapters, style)(function)


def test_without_a_style_known_objects_are_recognised_and_what_calls_show_alone() -> None:
    (subject,) = resolve("torch.nn.functional:scaled_dot_product_attention")
    assert subject.about[0].startswith("scaled_dot_product_attention: called as sdpa")
    (subject,) = resolve(flashlike)
    assert subject.about[0].startswith("flashlike: called as flash")


def test_the_layouts_that_a_signature_does_not_tell_apart_are_told_by_calls() -> None:
    def bare(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention on ``(B, L, H, E)`` whose arguments are those of one on ``(B, H, L, E)``."""
        scores = torch.einsum("blhe,bshe->bhls", q / q.shape[-1] ** 0.5, k)
        return torch.einsum("bhls,bshe->blhe", scores.softmax(-1), v)

    (subject,) = resolve(bare)
    assert subject.about[0].startswith("bare: called as flash")
    report = attnbench.check(
        adapters.flash(bare), profile="quick", invariants=["agrees_with_float64"]
    )
    assert report.ok, report


class Written(torch.nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1) @ v


def test_a_class_is_not_called_like_a_function_and_the_message_says_so() -> None:
    with pytest.raises(StyleError, match=r"Written cannot be called as sdpa: it is a class; write"):
        attnbench.check(Written, style="sdpa")


def test_a_class_under_a_functions_style_is_told_the_spec_to_paste() -> None:
    class Attention(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return value

    with pytest.raises(StyleError, match=r"SPEC = sdpa\(Attention\(\.\.\.\), name='Attention'\)"):
        adapters.sdpa(Attention)


@dataclasses.dataclass
class Scaled:
    """An attention that has no hash, as it is compared by its fields."""

    factor: float = 1.0

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT * self.factor).softmax(-1) @ value


class OfWholeHeads(nn.Module):
    """A class of query, key and value that refuses most sizes."""

    def __init__(self, query_size: int) -> None:
        super().__init__()
        if query_size % 64:
            raise ValueError("the size must be a multiple of 64")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.mT).softmax(-1) @ value


@pytest.mark.parametrize("target", [Scaled(), OfWholeHeads])
def test_what_has_no_hash_or_refuses_sizes_is_resolved_or_refused_in_words(target: Any) -> None:
    with contextlib.suppress(StyleError):
        assert resolve(target)
