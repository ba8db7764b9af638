"""Invariants on what a layer takes beside its tokens: a second sequence, and inputs by token.

In all other invariants they are one constant, which any cut, selection or padding leaves alone.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Invariant, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import SOURCE, LayerCase, accepts, fails, layer_cases
from attnbench_plugins.properties import HINTS
from attnbench_plugins.properties.caches.checks import has_cache

_DRAWS = 8


class _Beside(LayerCase):
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
        self, rows: Tensor, start: int = 0, end: Any = None, cache: Any = None, of: Any = None
    ) -> Any:
        """The output of some tokens of some rows, and the cache to go on with."""
        hidden, given = self.hidden[rows][:, start:end], self.beside(rows, start, end)
        return self.subject.call(of or self.module, hidden, None, cache, **given)

    def judge(self, got: Tensor, expected: Tensor, change: str, other: str) -> None:
        """Raise where two outputs differ by more than rounding."""
        real, limits = self.real(got), lambda: self.rounding.amax()
        self.expect(got, expected, real, f"{change}, output", other, allowed=limits)


def _follows(name: str, statement: str, what: str) -> Invariant:
    """An invariant on a side input that belongs to its items or tokens."""

    def check(subject: Subject, case: Case) -> None:
        layer = _Beside(subject, case, what)
        with torch.no_grad():
            _counts(layer, what)
            if what == "source":
                _behind_a_longer(layer)
            cut = 1 + layer.choose(case.q_len - 1)
            try:
                _compare(layer, what, cut)
            except InvariantViolation:
                given, layer.given = layer.given, layer.alike()
                if not fails(_compare, layer, what, cut):
                    layer.given = given
                    raise  # else it is not what is beside the tokens, and others tell it

    return Invariant(
        name=name,
        statement=statement,
        hint=HINTS[name],
        check=check,
        kinds=("layer",),
        cases=_cases,
        applies=accepts(what),
    )


def _compare(layer: _Beside, what: str, cut: int) -> None:
    """Raise if items alone, beside padding or with a cache differ from one call on all."""
    whole = layer.ask(layer.rows)[0]
    for row in layer.rows.tolist():
        alone = layer.ask(torch.tensor([row]))[0]
        change = f"with its own {what}, item {row} alone"
        layer.judge(alone, whole[row : row + 1], change, "the item in the batch")
    _beside_padding(layer, what, whole)
    if has_cache(layer.subject) is None and cut < whole.shape[1]:
        _with_a_cache(layer, what, whole, cut)


def _counts(layer: _Beside, what: str) -> None:
    """Raise if other side inputs leave the output as it is."""
    whole = layer.ask(layer.rows)[0]
    drawn = [layer.drawn(what) for _ in range(_DRAWS)]
    if any(not torch.equal(layer.call(layer.hidden, **other)[0], whole) for other in drawn):
        return
    raise InvariantViolation(
        f"with {_DRAWS} other draws of {what} the output is the same, bit for bit: it is unused"
    )


def _behind_a_longer(layer: _Beside) -> None:
    """Raise if a call with a longer source leaves some of it to the next one."""
    whole, source = layer.ask(layer.rows)[0], layer.given["source"]
    try:
        layer.call(layer.hidden, source=torch.cat([source, source.flip(1)], 1))
    except Exception:  # it takes sources of one length
        return
    change, other = "after a call with a longer source", "the same call before"
    layer.judge(layer.ask(layer.rows)[0], whole, change, other)


def _beside_padding(layer: _Beside, what: str, whole: Tensor) -> None:
    """Padding at the right, with side inputs of its own, changes no real token."""
    if "padding_mask" not in layer.subject.accepts:
        return
    length = layer.hidden.shape[1]
    hidden = torch.cat([layer.hidden, layer.other(layer.hidden[:, :1])], 1)
    mask = torch.ones(hidden.shape[:2], dtype=torch.bool, device=hidden.device)
    mask[:, length:] = False

    def call() -> Tensor:
        given = layer.beside(layer.rows)
        if "extras" in given:
            own = given["extras"].items()
            given["extras"] = {n: torch.cat([t, t.flip(0)[:, -1:]], 1) for n, t in own}
        return layer.call(hidden, mask, **given)[0][:, :length]

    names = f"with its {what} and a padded token behind", "the same without it"
    layer.judge(call(), whole, *names)


def _with_a_cache(layer: _Beside, what: str, whole: Tensor, cut: int) -> None:
    length, batch = layer.hidden.shape[1], len(layer.rows)

    def begin() -> Any:
        caches[0] = layer.subject.new_cache(layer.module, batch)
        first, caches[0] = layer.ask(layer.rows, 0, cut, caches[0])
        return first

    caches = [layer.subject.new_cache(layer.module, batch) for _ in range(2)]
    names = f"with its {what}, the first {cut} of {length} tokens", "one call on all"
    layer.judge(begin(), whole[:, :cut], *names)
    turned = layer.rows.flip(0)
    second, caches[1] = layer.ask(turned, 0, cut, caches[1])  # items that have another source
    change = f"with its {what}, tokens 0 to {cut - 1}, begun after those of others"
    layer.judge(second, whole[turned][:, :cut], change, "one call on all")
    rest, caches[0] = layer.ask(layer.rows, cut, None, caches[0])
    change = f"with its {what}, and another cache in between, tokens {cut} to {length - 1}"
    given = whole[:, cut:], change, "one call on all"
    layer.judge(rest, *given)
    cache = layer.subject.spec.cache
    assert cache is not None
    if cache.select is not None and batch > 1:
        _selected(layer, what, whole, cut)
    if cache.crop is not None:
        with contextlib.suppress(NotImplementedError):
            kept = layer.subject.crop(caches[0], cut)
            got, _ = layer.ask(layer.rows, cut, None, kept)
            change = f"with its {what}, after the cache was cropped to {cut}"
            layer.judge(got, whole[:, cut:], change, "one call on all")


def _selected(layer: _Beside, what: str, whole: Tensor, cut: int) -> None:
    """Rows that are turned, doubled in an order of no beams, or both, keep their side inputs."""
    turned, last = layer.rows.flip(0), len(layer.rows) - 1
    doubled = [*turned.tolist(), *layer.rows.tolist()]
    most = layer.subject.limits[0]
    further = ((doubled,), (doubled, [2 * last + 1, 1])) if not 0 < most < len(doubled) else ()
    for orders in (([last, 0],), *further):
        _, kept = layer.ask(turned, 0, cut, layer.subject.new_cache(layer.module, last + 1))
        rows = turned  # items that have another source
        try:
            for order in orders:
                chosen = torch.tensor(order, device=layer.hidden.device)
                kept, rows = layer.subject.select(kept, chosen), rows[chosen]
        except NotImplementedError:  # a refusal, which is no failure
            continue
        change = f"with its {what}, after rows {' and then '.join(map(str, orders))} were selected"
        try:
            got, _ = layer.ask(rows, cut, None, kept)
        except Exception:
            if orders in further:
                continue  # selected_rows_go_on_as_their_sequences doubles rows, too, and tells it
            raise
        layer.judge(got, whole[rows][:, cut:], change, "one call on these rows")


def _cases(subject: Subject) -> CaseStrategy:
    return layer_cases(
        subject,
        regimes=("normal",),
        dtypes=("float64", "float32"),
        min_q_len=2,
        beyond=(Case((2,), 5, 5, 8, 8, 8), Case((3,), 6, 6, 8, 8, 8)),
    )


source_is_that_of_the_item = _follows(
    "source_is_that_of_the_item",
    "Each item attends to its own source, however calls are cut, selected, cropped and padded, and "
    "another source changes the output.",
    "source",
)
extras_go_with_their_tokens = _follows(
    "extras_go_with_their_tokens",
    "Inputs by token count for their own tokens, however calls are cut, selected, cropped and "
    "padded.",
    "extras",
)
