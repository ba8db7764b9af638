"""Trees of tokens: what they see, and what only counts them otherwise, are told apart."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from attnbench_zoo.mutants.layers_paths import LATENT, Latent, TreeIsASequence
from torch import Tensor

import attnbench
from attnbench import LayerSpec


class CountsByIndex(Latent):
    """Scores fall with the distance of slots, which in a tree is not that of positions."""

    def weights(self, scores: Tensor, seen: Tensor | None = None) -> Tensor:
        q_len, kv_len = scores.shape[-2:]
        own = torch.arange(kv_len - q_len, kv_len)[:, None]
        return super().weights(scores - (own - torch.arange(kv_len)), seen)


class CountsByDepth(CountsByIndex):
    """Scores fall with the number of ancestors between."""

    def weights(self, scores: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is None:
            return super().weights(scores)
        depth = seen.sum(-1, keepdim=True) - 1
        places = torch.cat([torch.arange(seen.shape[1] - len(seen)), depth[:, 0]])
        return Latent.weights(self, scores - (depth - places), seen)


class Shifted(CountsByDepth):
    """In a tree, scores of its own tokens are higher."""

    def weights(self, scores: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is not None:
            scores = scores + 3.0 * (torch.arange(scores.shape[-1]) >= seen.shape[1] - len(seen))
        return super().weights(scores, seen)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (CountsByIndex, "tokens of a tree see just their ancestors, but those of other branches"),
        (Shifted, "tokens of a tree see just their ancestors, but by wrong positions or weights"),
        (TreeIsASequence, "tokens of a tree do not see just their ancestors"),
        (CountsByDepth, None),
    ],
)
def test_positions_of_a_tree_are_not_told_as_what_its_tokens_see(
    make: type[Latent], told: str | None
) -> None:
    assert isinstance(LATENT.spec, LayerSpec)
    spec = replace(LATENT.spec, make=make, name="counts")
    names = ["tree_paths_equal_their_sequences"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok == (told is None), str(report)
    assert told is None or f"counts: {told}" in str(report)
    assert told is None or "it depends on tokens" in report.outcomes[0].reason
