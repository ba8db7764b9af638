"""A layer at a case with inputs beside its tokens: a second sequence, or inputs by token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.layer_calls import LayerCase
from attnbench.subject.layer import SOURCE
from attnbench.subject.subject import Subject

DRAWS = 8
"""Other draws of a side input that are tried."""


class Beside(LayerCase):
    """A layer at a case, with another side input for every item, or for every token."""

    def __init__(self, subject: Subject, case: Case, what: str) -> None:
        super().__init__(subject, case)
        self.rows = torch.arange(case.lead[0], device=case.device)
        self.given = self.drawn(what)

    def drawn(self, what: str) -> dict[str, Any]:
        """Other side inputs of all rows."""
        if what == "extras":
            return {what: self.subject.drawn_extras(self.case, self.generator)}
        shape = (self.case.lead[0], SOURCE, self.case.query_size)
        return {what: self.other(self.hidden.new_zeros(shape))}

    def alike(self) -> dict[str, Any]:
        """The same side inputs for all rows and tokens."""
        if "source" in self.given:
            return {"source": self.given["source"][:1].expand_as(self.given["source"])}
        return {"extras": {k: v[:1, :1].expand_as(v) for k, v in self.given["extras"].items()}}

    def beside(self, rows: Tensor, start: int = 0, end: int | None = None) -> dict[str, Any]:
        """The side inputs of some rows, and of the tokens from ``start`` to ``end``."""
        found = dict(self.given)
        if "source" in found:
            found["source"] = found["source"][rows]
        if "extras" in found:
            found["extras"] = {k: v[rows][:, start:end] for k, v in found["extras"].items()}
        return found

    def ask(
        self,
        rows: Tensor,
        start: int = 0,
        end: int | None = None,
        cache: Any = None,
        of: Any = None,
    ) -> Any:
        """The output of some tokens of some rows, and the cache to go on with."""
        hidden, given = self.hidden[rows][:, start:end], self.beside(rows, start, end)
        return self.subject.call(of or self.module, hidden, None, cache, **given)

    def judge(
        self, got: Tensor, expected: Tensor, change: str, other: str, cause: str | None = None
    ) -> None:
        """Raise where two outputs differ by more than rounding."""
        real, limits = self.real(got), lambda: self.rounding.amax()
        self.expect(got, expected, real, f"{change}, output", other, allowed=limits, cause=cause)

    def judge_where(
        self, where: str, call: Callable[[], Tensor], expected: Tensor, *names: str
    ) -> None:
        """Raise where a call gives another output, and say so if other side inputs change none.

        Args:
            where: ``padded`` or ``cached``, the cause of which is that they are ignored there.
            call: gives the output, with the side inputs that are given.
            expected, names: what it should be, and the words of :meth:`judge`.
        """
        got = call()
        try:
            self.judge(got, expected, *names)
        except InvariantViolation as violation:
            given, (what,), counted = self.given, self.given, []
            for _ in range(DRAWS):
                self.given = self.drawn(what)
                counted += [not torch.equal(self.ask(self.rows)[0], expected)]
                if not torch.equal(call(), got):
                    counted = []
                    break
            self.given = given
            if not any(counted):
                raise
            text = f"with {DRAWS} other draws of {what} this output is the same, bit for bit"
            text = f"{violation}\n  {text}: they are ignored here"
            raise violation.reworded(text, cause=f"side_ignored_{where}") from None

    def unread(self, what: str, cut: int, violation: InvariantViolation) -> InvariantViolation:
        """The violation, and whether what stands beside cached tokens counts in one call alone."""

        def outputs() -> tuple[Tensor, Tensor]:
            new = self.subject.new_cache(self.module, len(self.rows))
            begun = self.ask(self.rows, 0, cut, new)[1]
            return self.ask(self.rows, cut, None, begun)[0], self.ask(self.rows)[0][:, cut:]

        kept, before, counts = self.given, outputs(), [False, False]
        for _ in range(DRAWS if what == "extras" else 0):
            drawn = self.drawn(what)[what]
            mixed = {
                n: torch.cat([drawn[n][:, :cut], t[:, cut:]], 1) for n, t in kept[what].items()
            }
            self.given = {what: mixed}
            pairs = zip(counts, before, outputs(), strict=True)
            counts = [counted or not torch.equal(*two) for counted, *two in pairs]
        self.given = kept
        if counts != [False, True]:
            return violation
        told = (
            f"with other {what} of the cached tokens this output is the same, and not in one call"
        )
        return violation.reworded(f"{violation}\n  {told}", cause="cached_extras_unread")
