"""Right forms of attention are within what the judge allows, whatever it draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from attnbench_judge.axes import FEW, MANY, axes_for
from attnbench_judge.covering import Coverage
from attnbench_judge.drawn_streams import Deck, stream_of
from attnbench_judge.right_answers import RightOutput
from attnbench_judge.secret import Secret
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention as fused

pytestmark = pytest.mark.long

NAMES = ("attn_mask", "is_causal", "scale")


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


def narrow(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """The textbook form, which rounds every step to the dtype of its inputs."""
    return _scores(query, key, **options).softmax(-1) @ value


def in_order(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
    """A streaming form with 16 keys at a time, in float32."""
    scores = _scores(query.float(), key.float(), **options)
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    total = output = torch.zeros(())
    for part, values in zip(powers.split(16, -1), value.float().split(16, -2), strict=True):
        total, output = total + part.sum(-1, keepdim=True), output + part @ values
    return (output / total).to(query.dtype)


@pytest.mark.parametrize("seed", range(5))
def test_right_forms_are_not_accused(seed: int) -> None:
    secret = Secret(seed)
    chance = secret.chance("calls")
    deck = Deck(chance)
    axes = axes_for(NAMES, causal="top_left", grouped=False, style="sdpa")
    coverage = Coverage(axes, (FEW.fits, MANY.fits), chance)
    forms: list[Callable[..., Tensor]] = [fused, narrow, in_order]
    wrong = []
    for row in coverage.rows():
        stream = stream_of(row, "sdpa", "top_left", deck, secret)
        stream.draw()
        for form in forms:
            output = form(*stream.tensors(), **stream.keywords)
            error = RightOutput(stream.inputs(), chance).error(output)
            if error > 1.0:
                wrong.append(f"{form.__name__}: {error} at {stream.in_words()}")
        coverage.add(row, right=True)
    assert not wrong
