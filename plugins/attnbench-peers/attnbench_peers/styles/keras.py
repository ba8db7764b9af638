"""The adapter of Keras' attention layers, on its torch backend or any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec, Sizes
from attnbench.errors import StyleError
from attnbench.testing import adapted_spec, refusals

HEADS = 2
_COUNTS = ("num_heads", "num_query_heads", "num_key_value_heads")
_WIDTHS = ("key_dim", "head_dim")
"""The arguments of a layer's class that are given where it needs them."""


def keras(make: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """A spec of a Keras attention layer: ``MultiHeadAttention`` and its kind, or ``Attention``.

    ``MultiHeadAttention`` is made with two heads and takes a boolean ``attention_mask`` (True = may
    attend) and ``use_causal_mask``; ``Attention`` and ``AdditiveAttention`` take a mask for all
    queries alike. Keras wants ``KERAS_BACKEND`` set before it is imported; on another backend than
    torch it is forward only.

    Args:
        make: the layer's class, or a function that makes a layer; ``num_heads`` and ``key_dim`` (or
            ``head_dim``) are given where it takes them.
        fields: fields of the spec, in place of what the adapter knows; conventions and exemptions
            are added to its own.

    Raises:
        StyleError: it makes no layer that is called with query and value.
    """
    if not callable(make):
        raise StyleError(f"{make!r} cannot be called as keras: it is not callable.")
    text = f"{_name_of(make)} cannot be called as keras"
    if not inspect.isclass(make) and hasattr(make, "call"):
        raise StyleError(f"{text}: it is a layer; name its class, or a function that makes it.")
    try:
        needed = [name for name in _required(make) if name not in _COUNTS + _WIDTHS]
    except (TypeError, ValueError):
        raise StyleError(f"{text}: nothing tells its arguments.") from None
    if needed:
        raise StyleError(f"{text}: it makes no layer without {needed[0]}.")
    layer = _made(make, 4)
    if not callable(getattr(layer, "call", None)):
        raise StyleError(f"{text}: what it makes, {layer!r}, is no layer of Keras.")
    takes = set(inspect.signature(layer.call).parameters)
    if not {"query", "value"} <= takes and "inputs" not in takes:
        raise StyleError(f"{text}: its call takes neither query and value nor inputs.")
    many = "query" in takes
    torches = isinstance(layer, nn.Module)
    known = {
        "make": _Maker(make),
        "equal_sizes": not many,
        "dtypes": ("float32",),
        "sizes": _whole_heads if many else lambda sizes: sizes.replace(key_size=sizes.query_size),
        "accepts": ("is_causal",) if "use_causal_mask" in takes else (),
        "laws": () if many else ("pools_values",),
        "conventions": {
            "causal": "top_left",
            "empty_rows": "nan",  # a large number is taken from all scores, which still count
            "gradients": torches,
            "hidden_slots": "finite",
            "masks": ("boolean",) if many else ("boolean", "keys"),
        },
        "exempt": {},
    }
    return adapted_spec("keras", make, known, fields)


def _name_of(make: Any) -> str:
    return str(getattr(make, "__name__", type(make).__name__))


def _whole_heads(sizes: Sizes) -> Sizes:
    """The nearest sizes with a whole number of features a head, and values as wide as queries."""
    width = -(-sizes.query_size // HEADS) * HEADS
    return sizes.replace(query_size=width, value_size=width)


def _required(make: Callable[..., Any]) -> list[str]:
    """The arguments that a callee needs."""
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    found = inspect.signature(make).parameters.items()
    return [name for name, p in found if p.default is p.empty and p.kind in named]


def _made(make: Callable[..., Any], width: int) -> Any:
    names = inspect.signature(make).parameters
    given: dict[str, Any] = {}
    for name in _required(make):
        given[name] = HEADS if name in _COUNTS else max(1, width // HEADS)
    if "name" in names or any(p.kind is p.VAR_KEYWORD for p in names.values()):
        given["name"] = "attention"  # Keras numbers them, and parameters are named after it
    return make(**given)


class _Maker:
    """The spec's ``make``: a layer whose parameters are there, as those of torch's modules are."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self.layer = make
        self.__qualname__ = _name_of(make)

    def __call__(self, query_size: int, key_size: int, value_size: int) -> nn.Module:
        import keras  # it is the user's

        keras.utils.set_random_seed(int(torch.randint(2**31, ())))
        made = _Layer(_made(self.layer, query_size))
        sizes = (query_size, key_size, value_size)
        query, key, value = (torch.zeros(1, 1, size) for size in sizes)
        made(query, key, value)
        return made


class _Layer(nn.Module):
    """A layer of ``(B, L, E)``, other leading sizes folded into the first."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer
        self.takes = set(inspect.signature(layer.call).parameters)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
    ) -> Tensor:
        """The output ``(..., L, Ev)``."""
        lead = tuple(query.shape[:-2])
        shape = (*query.shape[:-1], key.shape[-2])
        flat = [tensor.reshape(-1, *tensor.shape[-2:]) for tensor in (query, key, value)]
        given: dict[str, Any] = {}
        if "training" in self.takes:
            given["training"] = self.training
        if is_causal:
            given["use_causal_mask"] = True
        mask = None
        if attn_mask is not None:
            mask = attn_mask.expand(shape).reshape(-1, *shape[-2:])
        masked = mask is not None or is_causal
        with refusals(_name_of(type(self.layer)), masked=masked):
            if "query" in self.takes:
                if mask is not None:
                    given["attention_mask"] = self.array(mask)
                query, key, value = map(self.array, flat)
                found = self.layer(query, value, key=key, **given)
            else:
                query, key, value = map(self.array, flat)
                if mask is not None:
                    given["mask"] = [None, self.array(mask[:, 0])]
                found = self.layer([query, value, key], **given)
        output = found if isinstance(found, Tensor) else torch.from_numpy(_numpy(found))
        return output.reshape(*lead, *output.shape[-2:]).to(flat[0].device)

    def array(self, tensor: Tensor) -> Any:
        """A tensor as the backend's array."""
        if isinstance(self.layer, nn.Module):
            return tensor
        return tensor.detach().cpu().numpy()


def _numpy(found: Any) -> Any:
    from keras import ops

    return ops.convert_to_numpy(found).copy()
