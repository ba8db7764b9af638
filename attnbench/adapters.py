"""Specs of existing code: each function here adapts one usual style of call.

``sdpa`` and ``flash`` are for functions of query, key and value, ``textbook`` for what textbooks
teach, ``multihead`` for ``nn.MultiheadAttention`` and its kind, and ``layer(make)`` for modules on
hidden states. ``varlen`` and ``paged``, for functions of packed documents and of paged keys as
flash-attention has them, come with the plugins of this distribution. With attnbench-peers there are
``interface`` for transformers' attention functions, ``transformers(config)`` for tiny random models
of that library with its own caches, ``flex(score_mod, mask_mod)`` for FlexAttention, ``keras`` for
Keras' layers, and ``array`` for libraries whose autograd is not torch's. The specs that they return
are checked and measured like any others::

    from attnbench.adapters import layer

    SPEC = layer(lambda size: Block(size, heads=4), sizes=lambda size: max(4, size // 4 * 4))

All of them accept fields of the spec (``name``, ``conventions`` ...) as keywords, which override
what they find out themselves. Each comes from a plugin when it is first used.
"""

from typing import Any

from attnbench.distributions import advice, named_by_plugin
from attnbench.errors import UnknownNameError

__all__ = ["flash", "layer", "multihead", "probe", "sdpa", "spec_of", "textbook"]  # noqa: F822  # from plugins


def __getattr__(name: str) -> Any:
    """An adapter, which a plugin brings by an entry point ``adapters.NAME``."""
    try:
        globals()[name] = value = named_by_plugin(f"adapters.{name}")
    except UnknownNameError as error:
        message = f"module {__name__!r} has no attribute {name!r}. {advice(f'adapters.{name}')}"
        raise AttributeError(message.strip(), name=name) from error
    return value
