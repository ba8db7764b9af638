"""Right forms of attention are within what the judge allows, whatever it draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnbench_judge.inputs.axes import FEW, MANY, axes_for
from attnbench_judge.inputs.covering import Coverage
from attnbench_judge.inputs.drawn_streams import Deck, stream_of
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.right_answers import RightOutput
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as fused

NAMES = ("attn_mask", "is_causal", "scale", "enable_gqa")


def _scores(
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
    if attn_mask is None:
        return scores
    if attn_mask.dtype == torch.bool:
        return scores.masked_fill(~attn_mask, -torch.inf)
    return scores + attn_mask


def _powers(query: Tensor, key: Tensor, **options: Any) -> Tensor:
    scores = _scores(query.float(), key.float(), **options)
    return (scores - scores.amax(-1, keepdim=True)).exp()


def narrow(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The textbook form, which rounds every step to the dtype of its inputs."""
    return _scores(query, key, **options).softmax(-1) @ value


def in_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A streaming form with 16 keys at a time, in float32."""
    powers = _powers(query, key, **options)
    total = output = torch.zeros(())
    for part, values in zip(powers.split(16, -1), value.float().split(16, -2), strict=True):
        total, output = total + part.sum(-1, keepdim=True), output + part @ values
    return (output / total).to(query.dtype)


def weights_in_half(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """As flash attention: scores in float32, and exponentials in the half type of the values."""
    powers = _powers(query, key, **options)
    found = powers.to(value.dtype).float() @ value.float() / powers.sum(-1, keepdim=True)
    return found.to(query.dtype)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 5))]
)
def test_right_forms_are_not_accused(seed: int) -> None:
    secret = Secret(seed)
    chance = secret.chance("calls")
    deck = Deck(chance)
    axes = axes_for(NAMES, causal="top_left", grouped=True, style="sdpa")
    coverage = Coverage(axes, (FEW.fits, MANY.fits), chance)
    forms: list[Callable[..., Tensor]] = [fused, narrow, in_order, weights_in_half]
    wrong = []
    for row in coverage.rows():
        stream = stream_of(row, "sdpa", "top_left", deck, secret)
        stream.draw()
        query, *others = stream.tensors()
        others = [t.repeat_interleave(query.shape[1] // t.shape[1], 1) for t in others]
        options = {name: value for name, value in stream.keywords.items() if name != "enable_gqa"}
        for form in forms:
            given = stream.tensors() if form is fused else [query, *others]
            output = form(*given, **(stream.keywords if form is fused else options))
            error = RightOutput(stream.inputs(), chance).error(output)
            if error > 1.0:
                wrong.append(f"{form.__name__}: {error} at {stream.in_words()}")
        coverage.add(row, right=True)
    assert not wrong
