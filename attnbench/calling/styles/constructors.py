"""The sizes that a constructor asks for, by the names that libraries and textbooks give them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attnbench.specs import Sizes

HEADS = 2

_MEANINGS = {
    "query": "query_size query_dim q_size q_dim dim_q d_q decoder_dim dec_dim",
    "key": "key_size key_dim k_size k_dim dim_k d_k encoder_dim enc_dim kdim",
    "value": "value_size value_dim v_size v_dim dim_v d_v output_size value_size2",
    "width": "hidden_size embed_dim embed_size d_model model_dim dim size units num_hiddens "
    "hidden_dim hidden attention_dim attn_dim n_hidden d_attn",
    "heads": "num_heads n_heads heads h nhead n_head",
    "dropout": "dropout dropout_p drop p attn_dropout dropout_rate",
    "slots": "value_size1 max_length max_len kv_len",
    "root": "scale temperature",
}
"""The names of a constructor's arguments, by what they mean."""


def constructor_arguments(
    make: Callable[..., Any],
    query_size: int,
    key_size: int,
    value_size: int,
    slots: int,
    dropout: float = 0.0,
) -> dict[str, Any] | str:
    """The arguments for a constructor that asks for sizes, or the name of one that is unknown.

    Args:
        make: a class, or a function that makes a module.
        query_size, key_size, value_size: Eq, Ek and Ev.
        slots: S, for a module that is made for one number of keys.
        dropout: the share of weights that training drops.
    """
    values = {
        "query": query_size,
        "key": key_size,
        "value": value_size,
        "width": value_size,
        "heads": HEADS,
        "dropout": dropout,
        "slots": slots,
        "root": query_size**0.5,
    }
    given: dict[str, Any] = {}
    for name, parameter in inspect.signature(make).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        meaning = next((m for m, n in _MEANINGS.items() if name.lower() in n.split()), None)
        if parameter.default is parameter.empty:
            if meaning is None:
                return name
            given[name] = values[meaning]
        elif meaning == "dropout" and isinstance(parameter.default, float):
            given[name] = dropout
    return given


def whole_heads(sizes: Sizes) -> Sizes:
    """The nearest sizes with a whole number of features a head, and values as wide as queries."""
    width = -(-sizes.query_size // HEADS) * HEADS
    return sizes.replace(query_size=width, value_size=width)


def asks_for_heads(make: Callable[..., Any]) -> bool:
    """Whether a constructor takes a number of heads."""
    return any(
        name.lower() in _MEANINGS["heads"].split() for name in inspect.signature(make).parameters
    )


def takes_dropout(make: object) -> bool:
    """Whether a class takes a share to drop, under one of its usual names."""
    known = _MEANINGS["dropout"].split()
    return inspect.isclass(make) and any(
        n.lower() in known for n in inspect.signature(make).parameters
    )
