"""Specs of what people have: each function here makes one, and says which calls it stands for.

``layer(make)`` is for modules on hidden states, ``transformers(config)`` for tiny random models of
that library with its own caches. What they return is checked and measured like any other spec::

    from attnbench.adapters import layer

    SPEC = layer(lambda size: Block(size, heads=4), sizes=lambda size: max(4, size // 4 * 4))

Importing this module imports torch, but none of the libraries that it adapts.
"""

from attnbench.subject.styles.hidden_states import layer
from attnbench.subject.styles.tiny_models import transformers

__all__ = ["layer", "transformers"]
