"""Models of transformers, here a stand-in with the interface of each release."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from attnbench_peers.styles.transformers import TinyModel
from torch import Tensor, nn

from attnbench.errors import UsageError


class Model(nn.Module):
    """Adds up the tokens that it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(_attn_implementation="sdpa")

    def set_input_embeddings(self, embeddings: nn.Module) -> None:
        self.embeddings = embeddings

    def run(self, hidden: Tensor, cache: Any) -> Any:
        seen = torch.cat([*([] if cache is None else cache.tokens), hidden], 1)
        if cache is not None:
            cache.tokens.append(hidden)
        return SimpleNamespace(last_hidden_state=seen.cumsum(1)[:, -hidden.shape[1] :])


class Old(Model):
    def forward(
        self, inputs_embeds: Tensor, past_key_values: Any = None, use_cache: bool = False
    ) -> Any:
        return self.run(inputs_embeds, past_key_values)


class New(Model):
    def forward(self, inputs_embeds: Tensor, cache: Any = None, use_cache: bool = False) -> Any:
        return self.run(inputs_embeds, cache)


class WithoutCache(Model):
    def forward(self, inputs_embeds: Tensor, **_: Any) -> Any:
        return self.run(inputs_embeds, None)


class Cache:
    def __init__(self) -> None:
        self.tokens: list[Tensor] = []

    def get_seq_length(self) -> int:
        return len(self.tokens)


@pytest.mark.parametrize("model", [Old, New])
def test_the_cache_reaches_the_model_whatever_its_argument_is_called(model: type[Model]) -> None:
    module, cache, hidden = TinyModel(model()), Cache(), torch.ones(1, 3, 2)
    steps = [module(token, cache=cache) for token in hidden.split(1, 1)]
    assert torch.equal(torch.cat(steps, 1), module(hidden))


def test_a_model_that_takes_no_cache_is_not_called_as_if_it_did() -> None:
    with pytest.raises(UsageError, match="forward of WithoutCache takes no cache"):
        TinyModel(WithoutCache())(torch.ones(1, 3, 2), cache=Cache())
