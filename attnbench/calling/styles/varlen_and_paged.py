"""Adapters of functions of packed documents and of paged keys, as flash-attention has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.results import output_and_more
from attnbench.calling.styles.callee import Callee, Maker, fold, spec_of, stored_scale, unfold
from attnbench.calling.styles.fitting import fitted
from attnbench.calling.styles.function_trials import takes_groups
from attnbench.calling.styles.renaming import renames
from attnbench.calling.styles.scaled_dot_floats import SCALED_DOT
from attnbench.calling.styles.sdpa_and_flash import one_head_size
from attnbench.errors import RefusalError
from attnbench.specs import MechanismSpec

_PAGE = 4
_OPTIONS = ("scale", "window_size", "softcap", "sinks", "alibi_slopes", "k_scale", "v_scale")


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


def _spec(
    style: str, kind: type[_Function], function: Any, laws: tuple[str, ...], fields: dict[str, Any]
) -> MechanismSpec:
    keywords = fitted(function, style)
    make = Maker(kind, function, keywords)
    options = [name for name in _OPTIONS if name in keywords]
    if takes_groups(make):
        options.append("enable_gqa")
    known = {
        **SCALED_DOT,
        "make": make,
        "sizes": one_head_size,
        "accepts": ("is_causal", *options),
        "laws": ("pools_values", *laws),
        "conventions": {"masks": ()},
    }
    return spec_of(style, function, known, fields)


class _Function(Callee):
    """A function of tensors whose heads come behind the slots, without masks."""

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
        tensors = [fold(t, heads=enable_gqa).transpose(1, 2) for t in (query, key, value)]
        return unfold(self.attend(*tensors, causal=is_causal, **options).transpose(1, 2), lead)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **options: Any) -> Tensor:
        """The output ``(B, L, H, E)`` of tensors ``(B, L, H, E)`` and ``(B, S, H, E)``."""
        raise NotImplementedError

    def scaled(self, options: dict[str, Any], tensor: Tensor, *, heads: bool) -> dict[str, Any]:
        """The options with the scales of stored keys and values as the function takes them.

        Raises:
            RefusalError: a scale is not by tensor, and not by head where that can be said.
        """
        found = dict(options)
        for name in {"k_scale", "v_scale"} & {*found}:
            own, scale = self.keywords.named[name], found[name]
            if own == name and scale.dim():
                raise RefusalError(f"{name} is tried by tensor only, where keys are not in a row")
            if scale.dim() != 2:  # a scale that is (B, H) already
                found[name] = stored_scale(scale, tensor, own, heads=heads)
        return found


class _Varlen(_Function):
    """Each item of a batch is a document."""

    def packed(self, *tensors: Any, causal: bool = False, **options: Any) -> Tensor:
        """The output of packed documents."""
        documents = torch.empty(len(tensors[3]) - 1, tensors[1].shape[1], 1, 1)
        options = self.scaled(options, documents, heads=True)
        output: Tensor = output_and_more(self.call(*tensors, is_causal=causal, **options))[0]
        return output

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
        given = {"cache_seqlens": lengths, "block_table": table, "is_causal": causal}
        rows = torch.empty(len(query), key.shape[2], 1, 1)  # of which each has one scale a head
        options = self.scaled(options, rows, heads=True)
        output: Tensor = output_and_more(self.call(query, key, value, **given, **options))[0]
        return output

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
