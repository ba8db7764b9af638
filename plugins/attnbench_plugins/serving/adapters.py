"""Adapters of functions of packed documents and of paged keys, as flash-attention has them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

import attnbench
from attnbench import MechanismSpec, Style
from attnbench.errors import RefusalError, StyleError
from attnbench.testing import (
    SCALED_DOT,
    adapted_spec,
    fold_heads,
    keywords_of,
    refusals,
    renames,
    unfold_heads,
)

_PAGE = 4
_OPTIONS = ("scale", "window_size", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale")
_NAMES = (("query", "q"), ("key", "k"), ("value", "v"))
_LENGTHS = ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")
_FIRST = {
    "varlen": (*_NAMES, *((name,) for name in _LENGTHS)),
    "paged": (("query", "q"), ("key_cache", "k_cache"), ("value_cache", "v_cache")),
}
_NAMED = {"varlen": ("causal",), "paged": ("cache_seqlens", "block_table", "causal")}


@renames
def varlen(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """A spec of a function of packed documents, as ``flash_attn_varlen_func`` is.

    It is called as ``function(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
    causal=False)``: ``q`` is ``(total_q, H, E)``, ``k`` and ``v`` are ``(total_k, H, E)``, and
    document ``i`` has the rows from ``cu_seqlens[i]`` (int32) to ``cu_seqlens[i + 1]``. The whole
    suite runs on it, an item a document, and the laws on packed documents are declared.

    Args:
        function: gives ``(total_q, H, E)``, or a tuple that begins with it.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        StyleError: it is not callable, or takes other arguments.
    """
    laws = ("packed_equals_separate", "packed_slack_is_inert")
    return _spec("varlen", _Varlen, function, laws, fields)


@renames
def paged(function: Callable[..., Any], **fields: Any) -> MechanismSpec:
    """A spec of a function of paged keys and values, as ``flash_attn_with_kvcache`` is.

    It is called as ``function(q, k_cache, v_cache, cache_seqlens=, block_table=, causal=)``: ``q``
    is ``(B, L, H, E)``, the caches are ``(pages, page_size, H, E)``, ``cache_seqlens`` is int32
    ``(B,)``, and ``block_table`` int32 ``(B, most_pages)`` names the pages of each row in order.
    It is forward only.

    Args:
        function: gives ``(B, L, H, E)``, or a tuple that begins with it.
        fields: fields of the spec, in place of what the adapter knows.

    Raises:
        StyleError: it is not callable, or takes other arguments.
    """
    known = {"gradients": False, "hidden_slots": "finite"}
    fields["conventions"] = {**known, **fields.get("conventions", {})}
    return _spec("paged", _Paged, function, ("pages_are_invisible",), fields)


@attnbench.hookimpl
def attnbench_styles() -> Iterable[Style]:
    """The styles ``varlen`` and ``paged``."""
    yield Style(name="varlen", fits=lambda target: _misfit(target, "varlen"), adapt=varlen)
    yield Style(name="paged", fits=lambda target: _misfit(target, "paged"), adapt=paged)


def _misfit(function: Any, style: str) -> str | None:
    """Why a function cannot be called so; ``None`` if its arguments are those of the style."""
    keywords = keywords_of(function) if callable(function) else None
    if keywords is None:
        return "nothing tells its arguments; wrap it in a function that names them"
    for place, names in enumerate(_FIRST[style]):
        if keywords.names[place : place + 1] not in {(name,) for name in names}:
            return f"argument {place + 1} should be {names[0]}"
    lacking = [name for name in _NAMED[style] if name not in keywords.names]
    return f"it has no argument {lacking[0]}" if lacking else None


def _spec(
    style: str, kind: type[_Function], function: Any, laws: tuple[str, ...], fields: dict[str, Any]
) -> MechanismSpec:
    if (misfit := _misfit(function, style)) is not None:
        name = getattr(function, "__name__", repr(function))
        raise StyleError(f"{name} cannot be called as {style}: {misfit}.")
    options = [name for name in _OPTIONS if name in kind(function).named]
    groups = ("enable_gqa",) if _takes_groups(kind, function) else ()
    known = {
        **SCALED_DOT,
        "make": lambda *sizes: kind(function),
        "sizes": lambda sizes: sizes.replace(value_size=sizes.query_size),
        "accepts": ("is_causal", *options, *groups),
        "laws": (*SCALED_DOT["laws"], *laws),
        "conventions": {"masks": ()},
    }
    return adapted_spec(style, function, known, fields)


def _takes_groups(kind: type[_Function], function: Any) -> bool:
    """Whether a call with two key heads for four query heads succeeds."""
    query, key = torch.zeros(1, 4, 3, 4), torch.zeros(1, 2, 5, 4)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k = query.to(dtype), key.to(dtype)
        try:
            with torch.random.fork_rng(devices=[]), torch.no_grad():
                return bool(kind(function)(q, k, k, enable_gqa=True).shape == query.shape)
        except (Exception, SystemExit):  # noqa: S112  it is the checks that tell what it raises
            continue
    return False


class _Function(nn.Module):
    """A function of tensors whose heads come behind the slots, without masks."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        keywords = keywords_of(function)
        assert keywords is not None
        self.function, self.named, self.spelt = function, keywords.named, keywords.spelt

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        is_causal: bool = False,
        enable_gqa: bool = False,
        **options: Any,
    ) -> Tensor:
        """The output ``(..., L, E)``."""
        lead = tuple(query.shape[:-2])
        options = self.scaled(options, key, heads=enable_gqa)
        tensors = [fold_heads(t, heads=enable_gqa).transpose(1, 2) for t in (query, key, value)]
        return unfold_heads(
            self.attend(*tensors, causal=is_causal, **options).transpose(1, 2), lead
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """The output ``(B, L, H, E)`` of tensors ``(B, L, H, E)`` and ``(B, S, H, E)``."""
        raise NotImplementedError

    def called(self, *tensors: Any, causal: bool, **given: Any) -> Tensor:
        """The output of the function."""
        name, on_cpu = getattr(self.function, "__name__", "it"), tensors[0].device.type == "cpu"
        with refusals(name, masked=causal, on_cpu=on_cpu):
            found = self.function(*tensors, **self.spelt({"is_causal": causal, **given}))
        output: Tensor = found[0] if isinstance(found, tuple | list) else found
        return output

    def scaled(self, options: dict[str, Any], tensor: Tensor, *, heads: bool) -> dict[str, Any]:
        """The options with the scales of stored keys and values as the function takes them.

        Raises:
            RefusalError: a scale is not by tensor, and not by head where that can be said.
        """
        found = dict(options)
        for name in {"k_scale", "v_scale"} & {*found}:
            scale = found[name]
            if scale.dim() == 2:  # it is (B, H) already
                continue
            if not self.named[name].endswith("descale"):
                if scale.dim():
                    raise RefusalError(
                        f"{name} is tried by tensor only, where keys are not in a row"
                    )
                continue
            wide = fold_heads(scale.expand(*tensor.shape[:-1], 1), heads=heads)
            if not bool((wide == wide[..., :1, :]).all()):
                raise RefusalError(f"{self.named[name]} is (B, H), and takes no scale by token")
            found[name] = wide[..., 0, 0].float()
        return found


class _Varlen(_Function):
    """Each item of a batch is a document."""

    def packed(self, *tensors: Any, causal: bool = False, **options: Any) -> Tensor:
        """The output of packed documents."""
        documents = torch.empty(len(tensors[3]) - 1, tensors[1].shape[1], 1, 1)
        options = self.scaled(options, documents, heads=True)
        return self.called(*tensors, causal=causal, **options)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """The output ``(B, L, H, E)`` of the items as documents."""
        tensors, lengths = (query, key, value), (query.shape[1], key.shape[1])
        items = torch.arange(len(query) + 1, device=query.device, dtype=torch.int32)
        offsets = (items * length for length in lengths)
        output = self.packed(*(t.flatten(0, 1) for t in tensors), *offsets, *lengths, **options)
        return output.reshape(*query.shape[:2], *output.shape[1:])


class _Paged(_Function):
    """Keys and values lie in pages of four, one after the other."""

    def paged(self, *tensors: Any, causal: bool = False, **options: Any) -> Tensor:
        """The output of ``(q, k_cache, v_cache, cache_seqlens, block_table)``."""
        query, key, value, lengths, table = tensors
        rows = torch.empty(len(query), key.shape[2], 1, 1)  # of which each has one scale a head
        options = self.scaled(options, rows, heads=True)
        given = {"cache_seqlens": lengths, "block_table": table, **options}
        return self.called(query, key, value, causal=causal, **given)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """The output ``(B, L, H, E)``, with the pages of each item in a row."""
        batch, length = key.shape[:2]
        pages = max(1, -(-length // _PAGE))
        rest = (0, 0, 0, 0, 0, pages * _PAGE - length)
        caches = (
            nn.functional.pad(t, rest).reshape(batch * pages, _PAGE, *t.shape[2:])
            for t in (key, value)
        )
        lengths = torch.full((batch,), length, dtype=torch.int32, device=query.device)
        table = torch.arange(batch * pages, dtype=torch.int32, device=query.device)
        return self.paged(query, *caches, lengths, table.reshape(batch, pages), **options)
