"""transformers: its attention functions, and a tiny random model for each kind of attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attnbench
from attnbench.adapters import interface, transformers
from attnbench_peers.library import LIBRARIES

INSTALLED = LIBRARIES["transformers"].installed is not None
QUANTO = LIBRARIES["optimum-quanto"].installed is not None

SIZES = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 4}
GPT2 = {"vocab_size": 32, "n_embd": 16, "n_layer": 2, "n_head": 4}
WINDOW = {"sliding_window": 4}

MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", {**SIZES, **HEADS}, {}),
    "llama_eager": ("llama", {**SIZES, **HEADS}, {"attention": "eager"}),
    "llama_static": ("llama", {**SIZES, **HEADS}, {"cache": "static"}),
    "llama_quantized": ("llama", {**SIZES, **HEADS}, {"cache": "quantized"}),
    "mistral": ("mistral", {**SIZES, **HEADS, **WINDOW}, {}),
    "mistral_static": ("mistral", {**SIZES, **HEADS, **WINDOW}, {"cache": "static"}),
    "gemma2": ("gemma2", {**SIZES, **HEADS, **WINDOW}, {"attention": "eager"}),
    "gemma3": ("gemma3_text", {**SIZES, **HEADS, **WINDOW}, {}),
    "qwen3": ("qwen3", {**SIZES, **HEADS}, {}),
    "gpt2": ("gpt2", GPT2, {"laws": ()}),
    "gpt_neox": ("gpt_neox", {**SIZES, "num_attention_heads": 2}, {}),
    "bloom": (
        "bloom",
        {"vocab_size": 32, "hidden_size": 16, "n_layer": 2, "n_head": 4},
        {"attention": "eager"},
    ),
    "bert": ("bert", {**SIZES, "num_attention_heads": 4}, {"cache": None, "laws": ()}),
}


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The attention functions that models are given."""
    if not INSTALLED:
        return
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.models.llama.modeling_llama import eager_attention_forward

    yield interface(eager_attention_forward, name="transformers_eager")
    # masks for it are boolean, and torch's function computes in the dtype of its inputs
    own: dict[str, Any] = {"masks": ("boolean", "floating"), "mask_value": "-inf"}
    own |= {"empty_rows": "zeros", "internal_dtype": None}
    yield interface(sdpa_attention_forward, name="transformers_sdpa", conventions=own)


@attnbench.hookimpl
def attnbench_layers() -> Iterable[attnbench.LayerSpec]:
    """Tiny models."""
    if not INSTALLED:
        return
    from transformers import AutoConfig

    for name, (kind, config, options) in MODELS.items():
        if options.get("cache") == "quantized" and not QUANTO:
            continue
        yield transformers(
            AutoConfig.for_model(kind, **config), name=f"transformers_{name}", **options
        )
