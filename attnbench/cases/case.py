"""Cases: the points at which a subject is checked or measured.

A case is plain data, so that Hypothesis can draw it, a benchmark can list it, and a counterexample
can print it and read it back from its id. :mod:`attnbench.subject.tensors` makes its tensors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from attnbench.cases.sizes import Sizes
from attnbench.errors import UsageError, nearest

Option = TypeVar("Option", str, int, bool)

MASKS = {
    "none": "no mask",
    "boolean": "boolean (..., L, S)",
    "boolean_shared": "boolean (L, S), one for all items",
    "key_row": "boolean (1, S), one row for all queries",
    "key_padding": "boolean (B, 1, ..., 1, S), as padding masks are often given",
    "bias": "floating (..., L, S), finite",
    "floating": "floating (..., L, S), with -inf",
    "padding": "valid lengths (B,)",
    "lengths_2d": "valid lengths (B, L)",
    "causal": "causal, bottom right",
    "causal_padding": "causal together with valid lengths (B,)",
    "window": "boolean (L, S), a window around the diagonal",
    "empty_row": "boolean (..., L, S), with a query that has no key left",
}
"""Kinds of mask. In all but ``empty_row`` every query has an allowed key."""

LAYER_MASKS = {
    "none": "no mask",
    "padding": "boolean (B, L), padding at the right",
    "left_padding": "boolean (B, L), padding at the left",
}
"""Kinds of mask of a layer case; with padding, one item has no real token."""

LAYOUTS = {
    "contiguous": "contiguous",
    "transposed": "the last two dimensions stored the other way round",
    "heads": "the last leading dimension stored after the sequence, as a head split leaves it",
    "strided": "every second element of a larger tensor",
    "offset": "a slice that starts inside a larger tensor",
    "expanded": "one item expanded over the first leading dimension, with stride 0",
}
"""Memory layouts of query, key and value."""

REGIMES = {
    "normal": "independent standard normal",
    "huge": "normal times 32, so that softmax saturates",
    "tiny": "normal times 1/1024",
    "equal_keys": "all keys of an item are the same",
    "zero_keys": "all keys are zero",
    "near_overflow": "q·k exceeds the largest float16, q·k / √E does not",
    "far": "normal, far from the origin (1024; 32 in half types)",
    "opposed": "query above zero and key below, times 16: dot products lie far below zero",
}
"""Regimes of values."""


@dataclass(frozen=True)
class Case:
    """One point at which a subject is checked or measured.

    Args:
        lead: leading sizes (batch, heads), possibly ``()``.
        q_len, kv_len: L and S.
        query_size, key_size, value_size: Eq, Ek and Ev.
        dtype: name of a torch dtype.
        device: name of a torch device.
        mask: a key of :data:`MASKS` (in a call of ``attend``: none, boolean, floating or causal).
        layout: a key of :data:`LAYOUTS`.
        regime: a key of :data:`REGIMES`.
        seed: seed of the parameters and of all tensors.
        variants: names of variants of a property with the chosen options, each a word, an integer
            or a boolean; they are drawn and shrink on their own, and no tensor depends on them.
    """

    lead: tuple[int, ...] = (2,)
    q_len: int = 3
    kv_len: int = 5
    query_size: int = 4
    key_size: int = 4
    value_size: int = 4
    dtype: str = "float32"
    device: str = "cpu"
    mask: str = "none"
    layout: str = "contiguous"
    regime: str = "normal"
    seed: int = 0
    variants: tuple[tuple[str, str | int | bool], ...] = ()

    @property
    def id(self) -> str:
        """Stable id of the case, which :meth:`from_id` reads back."""
        lead = "x".join(map(str, self.lead)) or "0d"
        chosen = "".join(f"+{name}={option}" for name, option in self.variants)
        return (
            f"b{lead}-L{self.q_len}-S{self.kv_len}-Eq{self.query_size}-Ek{self.key_size}"
            f"-Ev{self.value_size}-{self.dtype}-{self.device}-{self.mask}-{self.layout}"
            f"-{self.regime}-s{self.seed}{chosen}"
        )

    @property
    def is_narrow(self) -> bool:
        """Whether its dtype is a half type."""
        return self.dtype in ("bfloat16", "float16")

    @property
    def width(self) -> int:
        """The largest of Eq, Ek and Ev."""
        return max(self.query_size, self.key_size, self.value_size)

    @staticmethod
    def from_id(text: str) -> Case:
        """Parse the id of a case.

        Raises:
            UsageError: the text is not the id of a case.
        """
        match = _ID.fullmatch(text)
        if match is None:
            raise UsageError(f"{text!r} is not the id of a case; one is {Case().id}.")
        *texts, variants = match.groups()
        values: dict[str, Any] = dict(zip(Case.__dataclass_fields__, texts, strict=False))
        lead = values["lead"]
        values["lead"] = () if lead == "0d" else tuple(int(size) for size in lead.split("x"))
        for name in ("q_len", "kv_len", "query_size", "key_size", "value_size", "seed"):
            values[name] = int(values[name])
        pairs = (part.split("=") for part in variants.split("+")[1:])
        return Case(**values).tried(**{name: read_option(value) for name, value in pairs})

    def tried(self, **variants: str | int | bool) -> Case:
        """The same case with some variants of a property chosen."""
        return replace(self, variants=tuple({**dict(self.variants), **variants}.items()))

    def variant(self, name: str, default: Option) -> Option:
        """The chosen variant of a property.

        Args:
            name: name declared by the strategy, ``cases(subject, variants={name: options})``.
            default: returned if the case has no such variant, for example in a direct call.
        """
        options: dict[str, Any] = dict(self.variants)
        return options.get(name, default)  # type: ignore[no-any-return]  # as declared

    @property
    def sizes(self) -> Sizes:
        """The feature sizes of the case."""
        return Sizes(*map(self.__dict__.__getitem__, _SIZES))

    def with_sizes(self, sizes: Sizes) -> Case:
        """The same case with other feature sizes."""
        values = {name: getattr(sizes, name) for name in _SIZES}
        return self if sizes == self.sizes else replace(self, **values)

    def replace(self, **changes: Any) -> Case:
        """The same case with some fields changed."""
        return replace(self, **changes)

    @property
    def mistake(self) -> str | None:
        """A message about an unknown name or a negative size; ``None`` if the case is valid."""
        for field, names in (("mask", MASKS), ("layout", LAYOUTS), ("regime", REGIMES)):
            name = getattr(self, field)
            if name not in names:
                return f"{field} {name!r} is unknown. {nearest(str(name), names)}"
        for name, size in vars(self.sizes).items():
            smallest = min(size, default=0) if isinstance(size, tuple) else size
            if smallest < 0:
                return f"{name} = {size}, but must be at least 0"
        return None

    def legal(self) -> Case:
        """The nearest case whose mask and layout fit its sizes."""
        mask, layout = self.mask, self.layout
        if mask in ("padding", "lengths_2d", "key_padding", "causal_padding") and not self.lead:
            mask = "causal" if mask == "causal_padding" else "key_row"
        if mask in ("causal", "causal_padding") and self.q_len > self.kv_len:
            mask = "boolean"  # only empty_row may leave rows without keys
        if layout in ("heads", "expanded") and not self.lead:
            layout = "contiguous"
        if (mask, layout) == (self.mask, self.layout):
            return self
        return replace(self, mask=mask, layout=layout)


def read_option(text: str) -> str | int | bool:
    """An option of a variant, as it is written in the id of a case."""
    if text in ("True", "False"):
        return text == "True"
    return int(text) if text.isdecimal() else text


_SIZES = tuple(Sizes.__dataclass_fields__)
_ID = re.compile(
    r"b(0d|\d+(?:x\d+)*)-L(\d+)-S(\d+)-Eq(\d+)-Ek(\d+)-Ev(\d+)"
    r"-(\w+)-([\w:]+)-(\w+)-(\w+)-(\w+)-s(\d+)((?:\+\w+=\w+)*)"
)
