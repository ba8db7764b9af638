"""Specs of existing code: each function here adapts one usual style of call.

``sdpa``, ``flash`` and ``interface`` are for functions of query, key and value, ``multihead`` for
``nn.MultiheadAttention`` and its kind, ``flex(score_mod, mask_mod)`` for FlexAttention, ``keras``
for Keras' layers, ``varlen`` and ``paged`` for functions of packed documents and of paged keys as
flash-attention has them, ``array`` for libraries whose autograd is not torch's, ``layer(make)`` for
modules on hidden states, and ``transformers(config)`` for tiny random models of that library with
its own caches. The specs that they return are checked and measured like any others::

    from attnbench.adapters import layer

    SPEC = layer(lambda size: Block(size, heads=4), sizes=lambda size: max(4, size // 4 * 4))

All of them accept fields of the spec (``name``, ``conventions`` ...) as keywords, which override
what they find out themselves. Importing this module imports torch, but none of the libraries that
it adapts.
"""

from attnbench.calling.adaptation import spec_of
from attnbench.calling.probing.probe_result import probe
from attnbench.calling.styles.array import array
from attnbench.calling.styles.flex import flex
from attnbench.calling.styles.interface import interface
from attnbench.calling.styles.keras import keras
from attnbench.calling.styles.layer_adapter import layer
from attnbench.calling.styles.multihead import multihead
from attnbench.calling.styles.sdpa_and_flash import flash, sdpa
from attnbench.calling.styles.textbook_adapter import textbook
from attnbench.calling.styles.transformers import transformers
from attnbench.calling.styles.varlen_and_paged import paged, varlen

__all__ = [
    "array",
    "flash",
    "flex",
    "interface",
    "keras",
    "layer",
    "multihead",
    "paged",
    "probe",
    "sdpa",
    "spec_of",
    "textbook",
    "transformers",
    "varlen",
]
