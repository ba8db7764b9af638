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
    order, names = parsed(call)
    if isinstance(target, nn.Module):
        return _Renamed(target, order, names)
    if not inspect.isclass(target):
        signature = _signature(target, order, names)

        @functools.wraps(target)
        def function(*tensors: Any, **given: Any) -> Any:
            return _called(target, signature, order, names, tensors, given)

        function.__signature__ = signature  # type: ignore[attr-defined]
        del function.__wrapped__
        return function

    @functools.wraps(target, updated=())
    def make(*sizes: Any, **given: Any) -> Any:
        return _Renamed(target(*sizes, **given), order, names)

    return make


class _Renamed(nn.Module):
    """A module whose forward has other names."""

    def __init__(self, module: Any, order: tuple[str, ...], names: Mapping[str, str]) -> None:
        super().__init__()
        self.module, self.order, self.names = module, order, dict(names)
        self.__signature__ = _signature(module, order, names)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # num_heads, attention_weights ...
            return getattr(super().__getattr__("module"), name)

    def forward(self, *tensors: Any, **given: Any) -> Any:
        """The result of the module."""
        return _called(self.module, self.__signature__, self.order, self.names, tensors, given)


def _called(
    callee: Any,
    signature: inspect.Signature,
    order: tuple[str, ...],
    names: Mapping[str, str],
    tensors: tuple[Any, ...],
    given: dict[str, Any],
) -> Any:
    passed = signature.bind(*tensors, **given).arguments
    if (mask := passed.get("attn_mask")) is not None and _HIDES in (*order, *names.values()):
        passed["attn_mask"] = ~mask if mask.dtype == torch.bool else mask
    first = [passed.pop(_plain(meaning)) for meaning in order]
    own = {_plain(meaning): name for name, meaning in names.items()}
    return callee(*first, **{own[meaning]: value for meaning, value in passed.items()})


def _signature(callee: Any, order: tuple[str, ...], names: Mapping[str, str]) -> inspect.Signature:
    known = keywords_of(callee)
    if known is not None and not known.open:
        for name in names:
            if name not in known.names:
                raise StyleError(
                    f"call: {name!r} is no argument of the callee, which takes "
                    f"{', '.join(known.names)}; {_FORM}."
                )
    required = known.required if known else tuple(names)
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = [inspect.Parameter(_plain(meaning), kind) for meaning in order]
    rest = [
        inspect.Parameter(
            _plain(meaning), kind, default=inspect.Parameter.empty if needed else None
        )
        for name, meaning in names.items()
        for needed in [name in required or meaning in ("query", "key", "value")]
    ]
    return inspect.Signature(
        sorted([*first, *rest], key=lambda p: (p.default is None, _PASSED.index(p.name)))
    )


def _plain(meaning: str) -> str:
    return meaning.removeprefix("~")


def parsed(call: str) -> tuple[tuple[str, ...], dict[str, str]]:
    """What a call passes by position, and by name: the callee's names, with what they get."""
    try:
        tree = ast.parse(call.strip(), mode="eval").body
    except SyntaxError:
        tree = None
    if not isinstance(tree, ast.Call) or not (tree.args or tree.keywords):
        raise StyleError(f"call: {call!r} names no argument; {_FORM}.")
    passed = [*tree.args, *(keyword.value for keyword in tree.keywords)]
    meanings = [_FIRST.get(name, name) for name in map(ast.unparse, passed)]
    for meaning in meanings:
        if meaning not in _PASSED or [*map(_plain, meanings)].count(_plain(meaning)) > 1:
            what = "is passed twice" if meaning in _PASSED else "is nothing that a style passes"
            raise StyleError(
                f"call: {meaning!r} {what}; that is {', '.join(dict.fromkeys(_PASSED))}; {_FORM}."
            )
    if any(keyword.arg is None for keyword in tree.keywords):
        raise StyleError(f"call: {call!r} has a '**'; {_FORM}.")
    count = len(tree.args)
    own = [str(keyword.arg) for keyword in tree.keywords]
    return tuple(meanings[:count]), dict(zip(own, meanings[count:], strict=True))
