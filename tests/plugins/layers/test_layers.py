"""The built-in layers: what they keep, what they refuse, and what a step costs."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from attnbench_plugins.scorings.additive import AdditiveScoring
from torch import Tensor

import attnbench


def made(spec: Any, **options: Any) -> tuple[Any, Any, Tensor]:
    """A layer in evaluation, a cache for two rows, and 19 tokens."""
    torch.manual_seed(5)
    module = spec.make(16, **options).eval()
    assert spec.cache is not None
    return module, spec.cache.new(module, 2), torch.randn(2, 19, 16)


@torch.no_grad()
def test_a_ring_refuses_to_crop_below_what_it_evicted_and_stays_as_it_was() -> None:
    spec = attnbench.get("sliding_window_attention")
    assert spec.cache is not None
    assert spec.cache.crop is not None
    module, cache, hidden = made(spec)
    module(hidden[:, :12], cache=cache)
    twin = copy.deepcopy(cache)
    with pytest.raises(NotImplementedError, match="slots before 4 are evicted"):
        spec.cache.crop(cache, 10)
    step = hidden[:, 12:13]
    assert torch.equal(module(step, cache=cache), module(step, cache=twin))
    assert cache.keys.shape == cache.values.shape == (2, 2, 8, 4)


def test_a_full_buffer_says_how_many_tokens_it_holds() -> None:
    module, cache, hidden = made(attnbench.get("static_attention"))
    with pytest.raises(IndexError, match="76 tokens, but the cache holds 64"):
        module(hidden.repeat(1, 4, 1), cache=cache)


@torch.no_grad()
def test_a_step_projects_its_own_token_only(monkeypatch: pytest.MonkeyPatch) -> None:
    module, cache, hidden = made(attnbench.get("causal_attention"), scoring="additive")
    module(hidden, cache=cache)
    seen, project = [], AdditiveScoring.project_key

    def counted(scoring: AdditiveScoring, key: Tensor) -> Tensor:
        seen.append(key.shape[-2])
        return project(scoring, key)

    monkeypatch.setattr(AdditiveScoring, "project_key", counted)
    module(hidden[:, :1], cache=cache)
    assert seen == [1]
    assert cache.keys.shape == (2, 2, 20, 16)  # hidden units of the score, not features of a head


@pytest.mark.parametrize("options", [{"heads": 3}, {"kv_heads": 3}, {"heads": 0}])
def test_a_size_that_does_not_split_into_heads_is_refused(options: dict[str, int]) -> None:
    with pytest.raises(attnbench.UsageError, match="choose kv_heads that divides heads"):
        attnbench.get("rotary_attention").make(16, **options)
