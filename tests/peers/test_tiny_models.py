"""Tiny models of transformers as layers; run where that library is installed (``tox -e peers``)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import BertConfig, Gemma3TextConfig, GPT2Config, LlamaConfig, MistralConfig

import attnbench
from attnbench.adapters import transformers

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 8,
}
LLAMA = LlamaConfig(**SMALL, num_key_value_heads=2)
MISTRAL = MistralConfig(**SMALL, num_key_value_heads=2, sliding_window=4)
GEMMA = Gemma3TextConfig(
    **SMALL,
    num_key_value_heads=2,
    head_dim=4,
    sliding_window=4,
    layer_types=["sliding_attention", "full_attention"],
)
GPT2 = GPT2Config(
    n_embd=16, n_layer=2, n_head=4, vocab_size=8, n_positions=128, bos_token_id=0, eos_token_id=0
)
CONFIGS = {"llama": LLAMA, "mistral": MISTRAL, "gemma": GEMMA, "gpt2": GPT2}
ATTENTIONS = [
    (name, attention, kind)
    for name in CONFIGS
    for attention in ("eager", "sdpa")
    for kind in ("dynamic", "static")
]
FLEX = [(name, "flex_attention", "dynamic") for name in ("llama", "mistral", "gemma")]


def made(config: Any, **options: Any) -> tuple[Any, Any, Any]:
    spec = transformers(config, **options)
    torch.manual_seed(0)
    module = spec.make(16).eval()
    assert spec.cache is not None
    return spec.cache, module, spec.cache.new(module, 2)


@pytest.mark.parametrize(("name", "attention", "kind"), ATTENTIONS + FLEX)
@torch.no_grad()
def test_calls_with_a_cache_of_the_library_give_what_one_call_gives(
    name: str, attention: str, kind: str
) -> None:
    spec, module, cache = made(CONFIGS[name], cache=kind, attention=attention)
    hidden, real = torch.randn(2, 10, 16), torch.ones(2, 10, dtype=torch.bool)
    real[1, :2] = False
    parts = [module(hidden[:, a:b], real[:, :b], cache) for a, b in ((0, 5), (5, 6), (6, 10))]
    whole = module(hidden, real)
    torch.testing.assert_close(torch.cat(parts, 1)[real], whole[real], rtol=1e-4, atol=1e-5)
    assert spec.length is not None
    assert spec.length(cache) == 10


@torch.no_grad()
def test_a_selection_from_a_cache_that_was_cropped_to_nothing_is_refused() -> None:
    spec, module, cache = made(LLAMA)
    module(torch.randn(2, 3, 16), cache=cache)
    assert spec.crop is not None
    assert spec.select is not None
    with pytest.raises(NotImplementedError, match="selects no rows of a cache that holds no slots"):
        spec.select(spec.crop(cache, 0), torch.tensor([1]))


def test_flex_attention_runs_without_its_compiler() -> None:
    spec = transformers(LLAMA, attention="flex_attention")
    names = ["calls_may_be_cut_anywhere", "padded_item_equals_item_alone"]
    report = attnbench.check(spec, profile="quick", invariants=names)
    assert [o.status for o in report.outcomes] == ["passed", "passed"], str(report)


@torch.no_grad()
def test_a_crop_beyond_a_sliding_window_is_refused_and_changes_nothing() -> None:
    spec, module, cache = made(GEMMA)
    hidden = torch.randn(2, 9, 16)
    module(hidden[:, :8], cache=cache)
    assert spec.crop is not None
    with pytest.raises(NotImplementedError, match="sliding window"):
        spec.crop(cache, 3)
    step = module(hidden[:, 8:], cache=cache)
    torch.testing.assert_close(step, module(hidden)[:, 8:], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_static_cache_with_a_sliding_window_says_that_it_is_not_croppable() -> None:
    """From transformers 5.24 on it has a crop, which is wrong once the window is full."""
    spec, module, cache = made(GEMMA, cache="static")
    module(torch.randn(2, 8, 16), cache=cache)
    assert spec.crop is not None
    with pytest.raises(NotImplementedError, match=r"is_croppable|no crop"):
        spec.crop(cache, 0)


def test_a_model_whose_blocks_all_slide_declares_how_far_it_sees() -> None:
    assert transformers(MISTRAL).window == 7
    assert transformers(GEMMA).window is None


def test_an_encoder_has_no_cache_and_is_not_causal() -> None:
    spec = transformers(BertConfig(**SMALL), cache=None)
    assert (spec.causal, spec.accepts) == (False, ("padding_mask",))
    assert attnbench.check(spec, profile="quick").ok


@pytest.mark.parametrize(("name", "kind"), [("llama", "dynamic"), ("gemma", "static")])
def test_a_tiny_model_is_not_accused(name: str, kind: str) -> None:
    report = attnbench.check(transformers(CONFIGS[name], cache=kind), profile="quick")
    assert report.ok, str(report)


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(attnbench.UsageError, match="cache='ring' is none of dynamic, static"):
        transformers(LLAMA, cache="ring")
    with pytest.raises(attnbench.ShapeError, match="the configuration says 16"):
        transformers(LLAMA).make(8)


@torch.no_grad()
def test_a_quantised_cache_takes_calls_of_any_length_and_rounds_what_it_keeps() -> None:
    _, module, cache = made(LLAMA, cache="quantized")
    hidden = torch.randn(2, 9, 16)
    parts = [module(hidden[:, a:b], None, cache) for a, b in ((0, 3), (3, 4), (4, 9))]
    gap = (torch.cat(parts, 1) - module(hidden)).abs().amax((0, 2))
    assert gap[:3].max() < 1e-6
    assert 1e-5 < gap[3:].max() < 1e-2


def test_a_quantised_cache_is_held_to_what_does_not_round() -> None:
    spec = transformers(LLAMA, cache="quantized")
    held = ["calls_without_cache_leave_none"]
    report = attnbench.check(spec, profile="quick", invariants=held)
    assert [outcome.status for outcome in report.outcomes] == ["passed"]
