"""Callees whose arguments have names of their own, called by the names that a style knows.

``call="f(queries=query, keys=key, values=value)"`` reads as the call that is to be made: on the
left of ``=`` the callee's name, on the right what is passed. What has no ``=`` goes by position.
``~attn_mask`` passes a boolean mask to a callee for which True hides a key.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import nn

from attnbench.calling.keywords import FIRST, MEANINGS, keywords_of
from attnbench.errors import StyleError

_Adapter = TypeVar("_Adapter", bound=Callable[..., Any])
_FORM = 'write it like "f(queries=query, keys=key, values=value)"'
_HIDES = "~attn_mask"
_PASSED = (
    *("module", *FIRST, "key_cache", "value_cache", "cache_seqlens", "block_table"),
    *("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"),
    *("valid_lens", *(name for names in MEANINGS.values() for name in names), _HIDES),
)
"""What a style may pass, in its order."""
_FIRST = {name: meaning for meaning, names in FIRST.items() for name in names}
"""The meanings of ``queries``, ``q`` or ``Q``, as some styles call the query."""


def renames(adapter: _Adapter) -> _Adapter:
    """Let an adapter take ``call=``, by which the arguments of its callee are renamed."""

    @functools.wraps(adapter)
    def adapt(target: Any, *rest: Any, call: str | None = None, **fields: Any) -> Any:
        return adapter(target if call is None else renamed(target, call), *rest, **fields)

    return adapt  # type: ignore[return-value]  # it is called as the adapter is


def renamed(target: Any, call: str) -> Any:
    """A function, module or class whose forward has the names of a style.

    Raises:
        StyleError: ``call`` is no call, passes what no style knows, or names no argument.
    """
    if not callable(target):
        return target  # the adapter says so
    names = _parsed(call)
    if isinstance(target, nn.Module):
        return _Renamed(target, names)
    if inspect.isclass(target):

        @functools.wraps(target, updated=())
        def make(*sizes: Any, **given: Any) -> Any:
            return _Renamed(target(*sizes, **given), names)

        return make
    signature = _signature(target, names)

    @functools.wraps(target)
    def function(*tensors: Any, **given: Any) -> Any:
        return _called(target, signature, names, tensors, given)

    function.__signature__ = signature  # type: ignore[attr-defined]
    del function.__wrapped__
    return function


class _Renamed(nn.Module):
    """A module whose forward has other names."""

    def __init__(self, module: Any, names: Mapping[str, str]) -> None:
        super().__init__()
        self.module, self.names = module, dict(names)
        self.__signature__ = _signature(module, names)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # num_heads, attention_weights ...
            return getattr(super().__getattr__("module"), name)

    def forward(self, *tensors: Any, **given: Any) -> Any:
        """The result of the module."""
        return _called(self.module, self.__signature__, self.names, tensors, given)


def _called(
    callee: Any,
    signature: inspect.Signature,
    names: Mapping[str, str],
    tensors: tuple[Any, ...],
    given: dict[str, Any],
) -> Any:
    passed = signature.bind(*tensors, **given).arguments
    mask = passed.get("attn_mask")
    if mask is not None and mask.dtype == torch.bool and _HIDES in names.values():
        passed["attn_mask"] = ~mask
    own = {name: meaning.removeprefix("~") for name, meaning in names.items()}
    places = [passed[meaning] for name, meaning in own.items() if name.isdigit()]
    left = {n: passed[m] for n, m in own.items() if m in passed and not n.isdigit()}
    return callee(*places, **left)


def _signature(callee: Any, names: Mapping[str, str]) -> inspect.Signature:
    known = keywords_of(callee)
    unknown = [n for n in names if not n.isdigit() and known and n not in known.names]
    if known is not None and unknown and not known.open:
        raise StyleError(
            f"call: {unknown[0]!r} is no argument of the callee, which takes "
            f"{', '.join(known.names)}; {_FORM}."
        )
    needed = {*FIRST, *(m for n, m in names.items() if n.isdigit())}
    needed |= {m for n, m in names.items() if known is None or n in known.required}
    parameters = [
        inspect.Parameter(
            meaning.removeprefix("~"),
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=inspect.Parameter.empty if meaning in needed else None,
        )
        for meaning in names.values()
    ]
    order = sorted(parameters, key=lambda p: (p.default is None, _PASSED.index(p.name)))
    return inspect.Signature(order)


def _parsed(call: str) -> dict[str, str]:
    """What a call passes: the callee's names, or places 0, 1 ..., with what they get."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Call) or not (tree.args or tree.keywords):
        raise StyleError(f"call: {call!r} names no argument; {_FORM}.")
    own = [*map(str, range(len(tree.args))), *(str(keyword.arg) for keyword in tree.keywords)]
    passed = map(ast.unparse, [*tree.args, *(keyword.value for keyword in tree.keywords)])
    meanings = [_FIRST.get(name, name) for name in passed]
    plain = [meaning.removeprefix("~") for meaning in meanings]
    for meaning in meanings:
        if meaning not in _PASSED or plain.count(meaning.removeprefix("~")) > 1:
            what = "is passed twice" if meaning in _PASSED else "is nothing that a style passes"
            raise StyleError(
                f"call: {meaning!r} {what}; that is {', '.join(dict.fromkeys(_PASSED))}; {_FORM}."
            )
    return dict(zip(own, meanings, strict=True))
