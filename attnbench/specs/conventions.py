"""Conventions: which of several usual meanings of attention a subject follows.

Each changes what is expected of it and leaves the rest of the suite in force. The first value of
each is the default: what attention means here.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

from attnbench.errors import SpecError, nearest
from attnbench.specs.common import ReadOnly

__all__ = [
    "KINDS",
    "LAYER_DEFAULTS",
    "Conventions",
    "format_conventions",
    "freeze_conventions",
    "parse_convention",
]

KINDS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "empty_rows": ("zeros", "mean", "nan", "refused"),
        "hidden_slots": ("any", "finite"),
        "masks": ("boolean", "floating", "lengths", "keys"),
        "internal_dtype": ("float64", "float32", "bfloat16", "float16"),
        "causal": ("bottom_right", "top_left", "square", "always"),
        "positions": ("none", "relative", "absolute"),
        "lse_base": ("e", "2"),
    }
)
"""The words that a convention may be, or for ``masks`` be made of."""

LAYER_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "positions": "absolute",
        "hidden_slots": "finite",
        "internal_dtype": None,
        "gradients": True,
    }
)
"""Those that a layer may declare, with what holds of one that does not."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """What a subject follows, with the defaults filled in.

    Args:
        empty_rows: what a query without keys gets: ``"zeros"``, the ``"mean"`` of all values,
            ``"nan"`` (nothing is promised of that row), or it is ``"refused"``.
        hidden_slots: what a slot hidden from every query may hold: ``"any"`` number, NaN and Inf
            too, or ``"finite"`` ones only.
        masks: the forms it takes, of ``"boolean"``, ``"floating"`` and ``"lengths"``; ``"keys"``
            restricts them to one row for all queries; an empty tuple means no mask.
        mask_value: ``-inf``, or the finite number that stands for it.
        internal_dtype: the dtype in which it computes; ``None`` for that of its inputs.
        gradients: whether it has a backward pass.
        causal: where the diagonal of ``is_causal`` ends: ``"bottom_right"`` or ``"top_left"``;
            ``"square"`` takes it for L = S only; ``"always"`` is causal whatever is asked.
        positions: ``"none"``: any reordering leaves the output alone; ``"relative"``: a shift of
            all does; ``"absolute"``: neither.
        extra_keys: how many keys it adds of its own, such as sinks or a key of zeros.
        per_head: whether it has parameters by position among the leading sizes.
        lse_base: base of the log-sum-exp that it returns, ``"e"`` or ``"2"``.
        lse_empty: log-sum-exp of a query without keys; NaN if nothing is promised.
    """

    empty_rows: str = "zeros"
    hidden_slots: str = "any"
    masks: tuple[str, ...] = ("boolean", "floating", "lengths")
    mask_value: float = -math.inf
    internal_dtype: str | None = None
    gradients: bool = True
    causal: str = "bottom_right"
    positions: str = "none"
    extra_keys: int = 0
    per_head: bool = False
    lse_base: str = "e"
    lse_empty: float = -math.inf


_KEYS = tuple(field.name for field in fields(Conventions))


def freeze_conventions(spec: Any, kind: str, allowed: Iterable[str] = _KEYS) -> None:
    """Check the ``conventions`` of a spec, and make them a read-only mapping of known values.

    Raises:
        SpecError: a key is unknown, or its value is none of its own.
    """
    given, where = spec.conventions, f"{kind} {spec.name!r}"
    if not isinstance(given, Mapping):
        raise SpecError(
            f"{where}: conventions should map a key such as 'empty_rows' to its value, "
            f"not be {given!r}"
        )
    checked = {key: _checked(where, key, value, tuple(allowed)) for key, value in given.items()}
    object.__setattr__(spec, "conventions", ReadOnly(checked))


def _checked(where: str, key: object, value: object, allowed: tuple[str, ...]) -> Any:
    if key not in allowed:
        hint = nearest(str(key), allowed)
        whose = " of a layer" if key in _KEYS else ""
        raise SpecError(f"{where}: {key!r} is no convention{whose}. {hint}")
    check, expected = _VALUES[str(key)]
    accepted = check(str(key), value)
    if accepted is _WRONG:
        raise SpecError(f"{where}: convention {key} = {value!r}, but should be {expected}.")
    return accepted


_WRONG = object()


def _word(key: str, value: object) -> object:
    return value if isinstance(value, str) and value in KINDS[key] else _WRONG


def _base(key: str, value: object) -> object:
    return _word(key, str(value))  # 2 is read as a number


def _words(key: str, value: object) -> object:
    given = (value,) if isinstance(value, str) else value
    if not isinstance(given, Iterable):
        return _WRONG
    words = tuple(given)
    if not all(word in KINDS[key] for word in words):
        return _WRONG
    # one row for all queries is a boolean one unless it is said otherwise
    return ("boolean", *words) if words == ("keys",) else words


def _dtype(key: str, value: object) -> object:
    return None if value is None else _word(key, value)


def _number(_: str, value: object) -> object:
    if value == "-inf":
        return -math.inf
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _WRONG
    return float(value) if value < 0 else _WRONG


def _any_number(_: str, value: object) -> object:
    if value in ("inf", "-inf", "nan"):
        return float(str(value))
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if number else _WRONG  # type: ignore[arg-type]  # it is a number


def _flag(_: str, value: object) -> object:
    return value if isinstance(value, bool) else _WRONG


def _count(_: str, value: object) -> object:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and value >= 0 else _WRONG  # type: ignore[operator]  # it is whole


def _one_of(key: str) -> str:
    return " or ".join(map(repr, KINDS[key]))


_VALUES: Mapping[str, tuple[Callable[[str, object], object], str]] = {
    "empty_rows": (_word, _one_of("empty_rows")),
    "hidden_slots": (_word, _one_of("hidden_slots")),
    "masks": (_words, "a tuple of 'boolean', 'floating', 'lengths' and 'keys', or ()"),
    "mask_value": (_number, "'-inf' or a negative number"),
    "internal_dtype": (_dtype, f"None, {_one_of('internal_dtype')}"),
    "gradients": (_flag, "True or False"),
    "causal": (_word, _one_of("causal")),
    "positions": (_word, _one_of("positions")),
    "extra_keys": (_count, "0 or how many keys it adds"),
    "per_head": (_flag, "True or False"),
    "lse_base": (_base, _one_of("lse_base")),
    "lse_empty": (_any_number, "a number, such as '-inf', 'inf' or 'nan'"),
}


def parse_convention(text: str) -> tuple[str, Any]:
    """Read ``KEY=VALUE``: a Python literal, or words; those of ``masks`` with ``+`` between.

    Raises:
        SpecError: there is no ``=``, or the key or its value is unknown.
    """
    key, separator, written = (part.strip() for part in text.partition("="))
    if not separator:
        raise SpecError(f"--convention {text}: write KEY=VALUE, such as empty_rows=nan.")
    value: Any
    try:
        value = ast.literal_eval(written)
    except (SyntaxError, ValueError):
        value = written
    if key == "masks" and isinstance(value, str):
        value = tuple(word for word in written.split("+") if word not in ("", "none"))
    return key, _checked("--convention", key, value, _KEYS)


def format_conventions(conventions: Mapping[str, Any]) -> str:
    """Conventions as :func:`parse_convention` reads them, with commas between."""
    return ", ".join(f"{key}={_written(value)}" for key, value in conventions.items())


def _written(value: Any) -> str:
    return "+".join(value) or "none" if isinstance(value, tuple) else str(value)
