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
    ("make", "is_right"),
    [(CountsByIndex, False), (Shifted, False), (TreeIsASequence, False), (CountsByDepth, True)],
)
def test_tokens_of_a_tree_get_what_their_own_path_gives(make: type[Latent], is_right: bool) -> None:
    assert isinstance(LATENT.spec, LayerSpec)
    spec = replace(LATENT.spec, make=make, name="counts")
    names = ["tree_paths_equal_their_sequences"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert report.ok == is_right, str(report)
