"""What a callee gives back: the output, and what comes with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeGuard

import torch
from torch import Tensor

from attnbench.errors import RefusalError

_OUTPUTS = ("output", "attn_output", "context", "context_vector", "last_hidden_state", "out")
_WEIGHTS = ("weights", "attn_weights", "attention_weights", "attentions", "p_attn", "attn")


def output_and_more(result: Any) -> tuple[Any, Any]:
    """The output of what a callee returns, and the weights or whatever comes with it, or ``None``.

    Args:
        result: a tensor; a tuple or list that begins with the output, of which the next that is not
            ``None`` is taken; or a dictionary, named tuple or object with a usual name for it, or
            with a single tensor.

    Raises:
        RefusalError: nothing tells which of the tensors of a dictionary or object is the output.
    """
    named = result if isinstance(result, Mapping) else None
    if named is None and hasattr(result, "_asdict"):
        named = result._asdict()
    if named is None and not isinstance(result, Tensor | tuple | list):
        named = getattr(result, "__dict__", {})
    if named:
        output = next((named[name] for name in _OUTPUTS if name in named), None)
        if output is not None:
            return output, next((named[name] for name in _WEIGHTS if name in named), None)
        if not isinstance(result, tuple) and _tensors_of(named):
            return _only_tensor(named), None
    if isinstance(result, tuple | list) and result:
        return result[0], next((part for part in result[1:] if part is not None), None)
    return result, None


def _tensors_of(named: Mapping[str, Any]) -> dict[str, Tensor]:
    return {name: value for name, value in named.items() if isinstance(value, Tensor)}


def _only_tensor(named: Mapping[str, Any]) -> Tensor:
    """The single tensor of what has no usual name for its output."""
    tensors = _tensors_of(named)
    if len(tensors) > 1 or set(tensors) & set(_WEIGHTS):
        raise RefusalError(
            f"it returns {', '.join(map(repr, tensors))}, and nothing says which of them is the "
            f"output: call it {_OUTPUTS[0]!r}, or return a tuple that begins with it."
        )
    return next(iter(tensors.values()))


def is_plain(value: object) -> TypeGuard[Tensor]:
    """Whether it is a tensor of numbers on the CPU, which can be read and compared."""
    return (
        isinstance(value, Tensor)
        and (value.device.type, value.layout) == ("cpu", torch.strided)
        and value.is_floating_point()
        and not value.is_nested
    )


def nested_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of nested tuples, lists and mappings; none of other objects."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, tuple | list | Mapping):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from nested_tensors(part)
