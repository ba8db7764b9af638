"""Documents of any lengths for one call, or over pages, and the module that attends to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation, Subject

OPTIONS = ("scale", "softcap", "window_size", "sinks", "alibi_slopes", "k_scale", "v_scale")
"""What such a call may take besides."""

_UNITS = 64
_HUGE = {"float64": 1e4, "float32": 1e4, "bfloat16": 64.0, "float16": 16.0}
"""By dtype, what slots hold that belong to no document."""


class Documents:
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
        self.kv_heads = case.lead[-1] if case.lead else 1
        self.grouped = case.variant("heads", "own") == "grouped"
        self.heads = self.kv_heads * (2 if self.grouped else 1)
        beside = case.variant("beside", "nothing")
        options = self._options(subject) if beside != "nothing" else {}
        self.options = {n: value for n, value in options.items() if beside in ("others", n)}
        self.lengths = self._lengths()
        self.parts = [self.part(q, k) for q, k in self.lengths]

    def part(self, q_len: int, kv_len: int) -> list[Tensor]:
        """Query, key and value of one document, ``(L, H, E)`` each."""
        case = self.case
        keys = [
            self.drawn(kv_len, size, self.kv_heads) for size in (case.key_size, case.value_size)
        ]
        return [self.drawn(q_len, case.query_size, self.heads), *keys]

    def _options(self, subject: Subject) -> dict[str, Any]:
        """A value of each option that it takes."""
        dtype = getattr(torch, self.case.dtype)
        by_head = torch.randn(self.heads, generator=self.generator).to(dtype).to(self.case.device)
        known = {
            "scale": 0.7,
            "softcap": 2.0,
            "window_size": (2, 1),
            "sinks": by_head,
            "alibi_slopes": by_head.abs(),
            "k_scale": by_head.new_tensor(0.5),
            "v_scale": by_head.new_tensor(2.0),
        }
        return {name: value for name, value in known.items() if name in subject.accepts}

    def _lengths(self) -> list[tuple[int, int]]:
        """Tokens of query and key of each document; the second lacks all, or queries, if asked."""
        kind, most = self.case.variant("documents", "equal"), min(9, max(2, self.case.kv_len))
        drawn = torch.randint(1, most + 1, (4, 2), generator=self.generator).tolist()
        pairs = [(k, k) for _, k in drawn]
        if kind == "other_keys" and self.causal:
            pairs = [(min(q, k), k) for q, k in drawn]
        elif kind == "other_keys":  # as many queries as keys, but in other documents
            pairs = [(q, k) for (q, _), (k, _) in zip(drawn, reversed(drawn), strict=True)]
        if kind in ("one_empty", "no_queries"):
            pairs[1] = (0, 0 if kind == "one_empty" else pairs[1][1])
        return pairs

    def drawn(self, count: int, size: int, heads: int) -> Tensor:
        """Other tokens ``(count, H, size)``."""
        shape = (count, heads, size)
        found = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return found.to(getattr(torch, self.case.dtype)).to(self.case.device)

    def joined(self, parts: Sequence[Sequence[Tensor]], slack: int = 0) -> list[Tensor]:
        """Query, key and value of all documents, with rows of none behind them."""
        huge = _HUGE[self.case.dtype]
        none = [tensor.sign() * huge for tensor in self.part(slack, slack)]
        return [torch.cat([*column, rest]) for column, rest in zip(zip(*parts), none, strict=True)]  # noqa: B905

    def packed(self, tensors: Sequence[Tensor]) -> Tensor:
        """The output of one call on all documents."""
        offsets = [
            torch.tensor([0, *lengths], device=self.case.device).cumsum(0).to(torch.int32)
            for lengths in zip(*self.lengths, strict=True)
        ]
        longest = [max(lengths) for lengths in zip(*self.lengths, strict=True)]
        found = self.call(*tensors, *offsets, *longest, causal=self.causal, **self.options)
        expected = (tensors[0].shape[0], self.heads, self.case.value_size)
        if not isinstance(found, Tensor) or tuple(found.shape) != expected:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvariantViolation(f"packed gave {shape}, but should give {expected}")
        return found

    def separate(self, part: Sequence[Tensor]) -> Tensor:
        """The output ``(L, H, Ev)`` of one document."""
        query, key, value = (t.transpose(0, 1)[None] for t in part)
        given = {"is_causal": True} if self.causal else {}
        given |= {"enable_gqa": True} if self.grouped else {}
        found = self.module(query, key, value, **given, **self.options)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        return output[0].transpose(0, 1)

    @property
    def text(self) -> str:
        """The lengths as text."""
        q, k = ([*lengths] for lengths in zip(*self.lengths, strict=True))
        causal = "causal " if self.causal else ""
        lengths = f"{q} queries and {k} keys" if q != k else f"{q} tokens"
        return f"of {causal}documents of {lengths}{self.beside}"

    @property
    def beside(self) -> str:
        """Grouped heads and options as text."""
        groups = f", {self.heads} heads on {self.kv_heads}" if self.grouped else ""
        return groups + (f", with {', '.join(self.options)}" if self.options else "")

    def allowed(self, tensor: Tensor) -> float:
        """The effect of rounding on values of this size."""
        eps = torch.finfo(getattr(torch, self.case.dtype)).eps
        largest = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
        return _UNITS * eps * max(1.0, largest)


class Pages:
    """Rows whose keys and values lie in pages.

    Args:
        documents: whose module attends to the rows.
        parts: query, key and value of each row, ``(L, H, E)`` each.
        size: slots of a page.
        mixed: whether pages are in another order, some of them unused.
        unwritten: factor of the large numbers that slots hold in which nothing is written.
    """

    def __init__(
        self,
        documents: Documents,
        parts: Sequence[Sequence[Tensor]],
        size: int,
        *,
        mixed: bool,
        unwritten: float = 1.0,
    ) -> None:
        self.documents, self.parts = documents, parts
        self.lengths = [len(part[1]) for part in parts]
        counts = [-(-length // size) for length in self.lengths]
        total = sum(counts) + (3 if mixed else 0)
        order = torch.arange(total)
        if mixed:
            order = torch.randperm(total, generator=documents.generator)
        self.table = torch.zeros(len(parts), max(counts) + mixed, dtype=torch.int32)
        caches = [
            documents.drawn(total * size, part.shape[-1], documents.kv_heads).sign()
            * (_HUGE[documents.case.dtype] * unwritten)
            for part in parts[0][1:]
        ]
        self.caches = [cache.reshape(total, size, *cache.shape[1:]) for cache in caches]
        first = 0
        for row, (part, count) in enumerate(zip(parts, counts, strict=True)):
            pages = order[first : first + count]
            self.table[row, :count] = pages
            for cache, tokens in zip(self.caches, part[1:], strict=True):
                for place, start in enumerate(range(0, len(tokens), size)):
                    chunk = tokens[start : start + size]
                    cache[pages[place], : len(chunk)] = chunk
            first += count

    def output(self) -> Tensor:
        """The output ``(B, L, H, Ev)`` of the call over pages."""
        device = self.documents.case.device
        output: Tensor = self.documents.call(
            torch.stack([part[0] for part in self.parts]),
            *self.caches,
            torch.tensor(self.lengths, dtype=torch.int32).to(device),
            self.table.to(device),
            causal=self.documents.causal,
            **self.documents.options,
        )
        return output
