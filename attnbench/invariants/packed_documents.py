"""Laws on packed documents and paged keys, of mechanisms whose module has a method for them.

``packed(query, key, value, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=False)``
has documents one after the other: query ``(total_q, H, E)``, key and value ``(total_k, H, ·)``,
and the offsets of the documents, int32 ``(documents + 1,)``, as flash-attention's
``flash_attn_varlen_func``. ``paged(query, key_cache, value_cache, cache_seqlens, block_table,
causal=False)`` has query ``(B, L, H, E)``, caches ``(pages, page_size, H, ·)``, lengths int32
``(B,)`` and the pages of each row, int32 ``(B, most)``, as ``flash_attn_with_kvcache``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.cases.spaces import cases
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.invariants.toolkit.comparisons import agree_within
from attnbench.specs import Invariant
from attnbench.subject.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

_UNITS = 64
_HUGE = {"float64": 1e4, "float32": 1e4, "bfloat16": 64.0, "float16": 16.0}


class _Documents:
    """Documents of a case, each ``(L, H, E)``, and the module that attends to them.

    Args:
        subject: its module has the method.
        case: its lengths bound those of the documents.
        method: ``packed`` or ``paged``.
    """

    def __init__(self, subject: Subject, case: Case, method: str) -> None:
        self.case, self.causal = case, case.variant("order", "plain") == "causal"
        self.module, _ = subject.build(case)
        if not callable(getattr(self.module, method, None)):
            raise InvariantViolation(
                f"{subject.name} declares a law on {method} calls, but its module has no method "
                f"{method}; the reference on laws gives its arguments"
            )
        self.call = getattr(self.module, method)
        self.generator = torch.Generator().manual_seed(case.seed)
        self.heads = case.lead[-1] if case.lead else 1
        self.lengths = self._lengths()
        sizes = (case.query_size, case.key_size, case.value_size)
        self.parts = [
            [self.drawn(n, size) for n, size in zip(pair, sizes, strict=True)]
            for pair in ((q, k, k) for q, k in self.lengths)
        ]

    def _lengths(self) -> list[tuple[int, int]]:
        """Tokens of query and key of each document; the second is empty, where that is asked."""
        kind, most = self.case.variant("documents", "equal"), min(9, max(2, self.case.kv_len))
        drawn = torch.randint(1, most + 1, (4, 2), generator=self.generator).tolist()
        pairs = [(min(q, k), k) if kind == "longer_keys" else (k, k) for q, k in drawn]
        if kind == "one_empty":
            pairs[1] = (0, 0)
        return pairs

    def drawn(self, count: int, size: int) -> Tensor:
        """Other tokens ``(count, H, size)``."""
        shape = (count, self.heads, size)
        found = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return found.to(getattr(torch, self.case.dtype)).to(self.case.device)

    def joined(self, parts: Sequence[Sequence[Tensor]], slack: int = 0) -> list[Tensor]:
        """Query, key and value of all documents, with rows of none behind them."""
        sizes = (self.case.query_size, self.case.key_size, self.case.value_size)
        huge = _HUGE[self.case.dtype]
        return [
            torch.cat([*(part[i] for part in parts), self.drawn(slack, size).sign() * huge])
            for i, size in enumerate(sizes)
        ]

    def packed(self, tensors: Sequence[Tensor]) -> Tensor:
        """The output of one call on all documents."""
        offsets = [
            torch.tensor([0, *lengths], device=self.case.device).cumsum(0).to(torch.int32)
            for lengths in zip(*self.lengths, strict=True)
        ]
        longest = [max(lengths) for lengths in zip(*self.lengths, strict=True)]
        found = self.call(*tensors, *offsets, *longest, causal=self.causal)
        expected = (tensors[0].shape[0], self.heads, self.case.value_size)
        if not isinstance(found, Tensor) or tuple(found.shape) != expected:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvariantViolation(f"packed gave {shape}, but should give {expected}")
        return found

    def separate(self, part: Sequence[Tensor]) -> Tensor:
        """The output ``(L, H, Ev)`` of one document."""
        query, key, value = (t.transpose(0, 1)[None] for t in part)
        given = {"is_causal": True} if self.causal else {}
        output: Tensor = self.module(query, key, value, **given)
        return output[0].transpose(0, 1)

    @property
    def told(self) -> str:
        """The lengths as text."""
        q, k = ([*lengths] for lengths in zip(*self.lengths, strict=True))
        causal = "causal " if self.causal else ""
        return f"of {causal}documents of {q}" + (f" queries and {k} keys" if q != k else " tokens")

    def allowed(self, tensor: Tensor) -> float:
        """The effect of rounding on values of this size."""
        largest = float(tensor.detach().double().abs().amax()) if tensor.numel() else 0.0
        return _UNITS * torch.finfo(getattr(torch, self.case.dtype)).eps * max(1.0, largest)


def _equals(subject: Subject, case: Case) -> None:
    documents = _Documents(subject, case, "packed")
    leaves = [[t.requires_grad_(subject.conventions.gradients) for t in p] for p in documents.parts]
    got = documents.packed(documents.joined(leaves))
    full = [number for number, (count, _) in enumerate(documents.lengths) if count]
    expected = torch.cat([documents.separate(leaves[number]) for number in full])
    what, other = f"packed output {documents.told}", "each document by itself"
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
        what = f"packed {documents.told}: gradient of {name} of document {number}"
        agree_within(one, two, documents.allowed(two), what, other)


def _independent(subject: Subject, case: Case) -> None:
    documents = _Documents(subject, case, "packed")
    with torch.no_grad():
        expected = documents.packed(documents.joined(documents.parts))
        start = 0
        for number, (count, keys) in enumerate(documents.lengths):
            changed = list(documents.parts)
            changed[number] = [documents.drawn(t.shape[0], t.shape[-1]) for t in changed[number]]
            if keys:
                got = documents.packed(documents.joined(changed))
                rest = torch.ones(len(got), dtype=torch.bool)
                rest[start : start + count] = False
                what = f"packed {documents.told}: with other tokens in document {number}, output"
                same = (got == expected).flatten(1).all(1) | ~rest
                if not bool(same.all()):
                    place = [
                        int(i) for i in ((got != expected) & ~same[:, None, None]).nonzero()[0]
                    ]
                    one, two = got[tuple(place)].item(), expected[tuple(place)].item()
                    raise InvariantViolation(
                        f"{what}{place} = {one:.9g}, but should stay {two:.9g} bit for bit"
                    )
            start += count


def _slack(subject: Subject, case: Case) -> None:
    documents = _Documents(subject, case, "packed")
    gradients = subject.conventions.gradients
    expected = documents.packed(documents.joined(documents.parts)).detach()
    tensors = documents.joined(documents.parts, slack=2)
    tensors = [tensor.detach().requires_grad_(gradients) for tensor in tensors]
    output = documents.packed(tensors)
    what = f"packed {documents.told}, and two rows of none behind them: output"
    real = output[: len(expected)]
    agree_within(real, expected, documents.allowed(expected), what, "the call without those rows")
    if not bool(output.isfinite().all()):
        raise InvariantViolation(f"{what} of the rows of none should be finite, but is not")
    if not output.requires_grad:
        return
    for name, gradient in zip(
        ("query", "key", "value"), torch.autograd.grad(real.sum(), tensors), strict=True
    ):
        if not bool((gradient[-2:] == 0).all()):
            raise InvariantViolation(
                f"packed {documents.told}, and two rows of none behind them: the gradient of {name}"
                f" at those rows = {gradient[-2:].flatten()[0].item():.6g}, but should be 0"
            )


def _pages(subject: Subject, case: Case) -> None:
    documents = _Documents(subject, case, "paged")
    lengths = [max(1, keys) for _, keys in documents.lengths]
    new = min(lengths) if documents.causal else 2
    parts = [
        [documents.drawn(n, size) for n, size in zip((new, m, m), sizes, strict=True)]
        for m in lengths
        for sizes in ((case.query_size, case.key_size, case.value_size),)
    ]
    with torch.no_grad():
        expected = torch.stack([documents.separate(part) for part in parts])
        for size, told in ((4, "in order"), (4, "in another order, with gaps"), (3, "of 3")):
            got = _over_pages(documents, parts, lengths, size, mixed=told != "in order")
            what = f"over pages {told}, of rows of {lengths} tokens: output"
            agree_within(got, expected, documents.allowed(expected), what, "each row by itself")
        for row, part in enumerate(parts):
            got = _over_pages(documents, [part], lengths[row : row + 1], 4, mixed=True)
            what = f"over pages, of row {row} alone: output"
            agree_within(got[0], expected[row], documents.allowed(expected), what, "without pages")


def _over_pages(
    documents: _Documents,
    parts: Sequence[Sequence[Tensor]],
    lengths: Sequence[int],
    size: int,
    *,
    mixed: bool,
) -> Tensor:
    """The output over pages of some size; those of no row hold large numbers."""
    counts = [-(-length // size) for length in lengths]
    total = sum(counts) + (3 if mixed else 0)
    order = torch.arange(total)
    if mixed:
        order = torch.randperm(total, generator=documents.generator)
    table = torch.zeros(len(parts), max(counts) + mixed, dtype=torch.int32)
    caches = [
        documents.drawn(total * size, part.shape[-1]).sign() * _HUGE[documents.case.dtype]
        for part in parts[0][1:]
    ]
    caches = [cache.reshape(total, size, *cache.shape[1:]) for cache in caches]
    first = 0
    for row, (part, count) in enumerate(zip(parts, counts, strict=True)):
        pages = order[first : first + count]
        table[row, :count] = pages
        for cache, tokens in zip(caches, part[1:], strict=True):
            for place, start in enumerate(range(0, len(tokens), size)):
                chunk = tokens[start : start + size]
                cache[pages[place], : len(chunk)] = chunk
        first += count
    held = torch.tensor(lengths, dtype=torch.int32)
    query = torch.stack([part[0] for part in parts])
    device = documents.case.device
    output: Tensor = documents.call(
        query, *caches, held.to(device), table.to(device), causal=documents.causal
    )
    return output


def _cases(subject: Subject, *documents: str) -> SearchStrategy[Case]:
    orders = ("plain", "causal") if "is_causal" in subject.accepts else ("plain",)
    variants = {"order": orders, **({"documents": documents} if documents else {})}
    return cases(
        subject,
        masks=("none",),
        layouts=("contiguous",),
        regimes=("normal",),
        max_len=17,
        max_features=17,
        variants=variants,
    )


_KINDS = ("equal", "one_empty", "longer_keys")


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The laws on packed documents and on pages."""
    for name, statement, check in (
        (
            "packed_equals_separate",
            "Documents that are packed into one call give outputs and gradients as each by itself.",
            _equals,
        ),
        (
            "packed_documents_are_independent",
            "Other tokens in one packed document leave the outputs of the others bitwise alone.",
            _independent,
        ),
        (
            "packed_slack_is_inert",
            "Rows behind the last packed document change nothing, and have gradients of 0.",
            _slack,
        ),
    ):
        yield Invariant(
            name=name,
            statement=statement,
            check=check,
            cases=lambda subject: _cases(subject, *_KINDS),
            kinds=("mechanism",),
            law=True,
        )
    yield Invariant(
        name="pages_are_invisible",
        statement="The order, the size and the number of pages change nothing, nor do other rows.",
        check=_pages,
        cases=_cases,
        kinds=("mechanism",),
        law=True,
    )
