"""Laws on packed documents and paged keys, of mechanisms whose module has a method for them.

``packed(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False)``
has documents one after the other: query ``(total_q, H, E)``, key and value ``(total_k, H, ·)``,
and the offsets of the documents, int32 ``(documents + 1,)``, as flash-attention's
``flash_attn_varlen_func``. ``paged(query, key_cache, value_cache, cache_seqlens, block_table,
causal=False)`` has query ``(B, L, H, E)``, caches ``(pages, page_size, H, ·)``, lengths int32
``(B,)`` and the pages of each row, int32 ``(B, most)``, as ``flash_attn_with_kvcache``. Both take
the options that ``accepts`` names under the same names; grouped heads show in the shapes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy, cases
from attnbench.testing import agree_within, holds, invariant
from attnbench_plugins.serving.documents import OPTIONS, Documents, Pages

_PAGES = (
    (4, False, "in order"),
    (4, True, "in another order, with gaps"),
    (3, True, "of 3"),
    (1, True, "of 1"),
    (256, True, "of 256"),
)
"""The size of pages, whether they are in another order, and what they are called."""
_UNWRITTEN = "in another order, with NaN where nothing was written"


def _cases(subject: Subject, *documents: str) -> CaseStrategy:
    orders = ("plain", "causal") if "is_causal" in subject.accepts else ("plain",)
    options = set(OPTIONS) & set(subject.accepts)
    variants = {
        "order": orders,
        "heads": ("own", "grouped") if "enable_gqa" in subject.accepts else ("own",),
        "beside": ("nothing", "others") if options else ("nothing",),
        **({"documents": documents} if documents else {}),
    }
    # some that a short schedule may leave out
    tried = [Case((1,), 4, 9).tried(documents=kind, order=orders[-1]) for kind in documents[2:]]
    if options:
        own = {"order": "plain", "beside": "others"}
        tried += [Case((1,), 4, 9).tried(documents=kind, **own) for kind in documents[2:]]
    return cases(
        subject,
        masks=("none",),
        layouts=("contiguous",),
        regimes=("normal",),
        max_len=17,
        max_features=17,
        variants=variants,
        beyond=tuple(tried),
    )


_law = functools.partial(
    invariant,
    cases=lambda subject: _cases(subject, "equal", "one_empty", "other_keys", "no_queries"),
    kinds=("mechanism",),
    law=True,
)


@_law(hint="bounds, causality, heads or options of the documents are not applied to each of them")
def packed_equals_separate(subject: Subject, case: Case) -> None:
    """Documents that are packed into one call give outputs and gradients as each by itself."""
    documents = Documents(subject, case, "packed")
    leaves = [[t.requires_grad_(subject.conventions.gradients) for t in p] for p in documents.parts]
    got = documents.packed(documents.joined(leaves))
    full = [number for number, (count, _) in enumerate(documents.lengths) if count]
    expected = torch.cat([documents.separate(leaves[number]) for number in full])
    what, other = f"packed output {documents.text}", "each document by itself"
    agree_within(got, expected, documents.allowed(expected), what, other)
    if not (got.requires_grad and expected.requires_grad):
        return
    weight = torch.randn(got.shape, generator=documents.generator, dtype=torch.float64).to(got)
    wanted = [tensor for number in full for tensor in leaves[number]]
    pairs = zip(
        torch.autograd.grad(got, wanted, weight, allow_unused=True),
        torch.autograd.grad(expected, wanted, weight, allow_unused=True),
        strict=True,
    )
    for place, (one, two) in enumerate(pairs):
        name, number = ("query", "key", "value")[place % 3], full[place // 3]
        zeros = torch.zeros_like(wanted[place])
        one, two = (zeros if gradient is None else gradient for gradient in (one, two))
        what = f"packed {documents.text}: gradient of {name} of document {number}"
        agree_within(one, two, documents.allowed(two), what, other)


@_law(hint="rows behind the last document are read, or their gradient is not written")
def packed_slack_is_inert(subject: Subject, case: Case) -> None:
    """Rows behind the last packed document change nothing, and have gradients of 0."""
    documents = Documents(subject, case, "packed")
    gradients = subject.conventions.gradients
    expected = documents.packed(documents.joined(documents.parts)).detach()
    tensors = documents.joined(documents.parts, slack=2)
    tensors = [tensor.detach().requires_grad_(gradients) for tensor in tensors]
    output = documents.packed(tensors)
    what = f"packed {documents.text}, and two rows of none behind them: output"
    real = output[: len(expected)]
    agree_within(real, expected, documents.allowed(expected), what, "the call without those rows")
    if not bool(output.isfinite().all()):
        raise InvariantViolation(f"{what} of the rows of none should be finite, but is not")
    if not output.requires_grad:
        return
    for name, gradient in zip(
        ("query", "key", "value"), torch.autograd.grad(real.sum(), tensors), strict=True
    ):
        what = (
            f"packed {documents.text}, and two rows of none behind them: their gradient of {name}"
        )
        holds(gradient[-2:] == 0, what, gradient[-2:], "0")


@invariant(
    hint="slots are looked up by another page, row or length than the table says",
    cases=_cases,
    kinds=("mechanism",),
    law=True,
)
def pages_are_invisible(subject: Subject, case: Case) -> None:
    """The order, the size and the number of pages change nothing, nor do other rows."""
    documents = Documents(subject, case, "paged")
    lengths = [max(1, keys) for _, keys in documents.lengths]
    new = 1 if case.q_len == 1 else min(lengths) if documents.causal else 2
    parts = [documents.part(new, length) for length in lengths]
    with torch.no_grad():
        expected = torch.stack([documents.separate(part) for part in parts])
        for size, mixed, pages in _PAGES:
            rows = Pages(documents, parts, size, mixed=mixed)
            got = rows.output()
            what = f"over pages {pages}, of rows of {lengths} tokens{documents.beside}: output"
            agree_within(got, expected, documents.allowed(expected), what, "each row by itself")
        if subject.conventions.hidden_slots == "any":
            got = Pages(documents, parts, 4, mixed=True, unwritten=math.nan).output()
            if not bool(got.isfinite().all()):
                raise InvariantViolation(
                    f"over pages {_UNWRITTEN}, output is not finite, but should be that of each "
                    "row by itself: declare the convention hidden_slots=finite if this is meant"
                )
        _each_alone(documents, parts, expected)


def _each_alone(documents: Documents, parts: Sequence[Sequence[Tensor]], expected: Tensor) -> None:
    for row, part in enumerate(parts):
        got = Pages(documents, [part], 4, mixed=True).output()
        what = f"over pages, of row {row} alone: output"
        agree_within(got[0], expected[row], documents.allowed(expected), what, "without pages")
