"""Conventions: which of several usual meanings of attention a subject follows.

A convention changes what the suite expects of a subject in one respect. The first value of each is
the default: what attention means here.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from attnbench.errors import SpecError, nearest
from attnbench.specs.common import ReadOnly

KINDS: Mapping[str, tuple[str, ...]] = {
    "empty_rows": ("zeros", "mean", "nan", "refused"),
    "hidden_slots": ("any", "finite"),
    "masks": ("boolean", "floating", "lengths", "keys"),
    "internal_dtype": ("float64", "float32", "bfloat16", "float16"),
    "causal": ("bottom_right", "top_left", "square", "always"),
    "positions": ("none", "relative", "absolute"),
    "lse_base": ("e", "2"),
}
"""The allowed words of each convention; ``masks`` combines several."""

FINITE = -999_999.0
"""The ``mask_value`` of a number for -inf that is not known: scores may lie below it."""

LAYER_DEFAULTS: Mapping[str, Any] = {
    "positions": "absolute",
    "hidden_slots": "finite",
    "internal_dtype": None,
    "gradients": True,
    "empty_rows": "zeros",
}
"""The conventions that a layer may declare, with their defaults."""


@dataclass(frozen=True, kw_only=True)
class Conventions:
    """The conventions that a subject follows, with the defaults filled in.

    Args:
        empty_rows: what a query without keys gets: ``"zeros"``, the ``"mean"`` of all values,
            ``"nan"`` (nothing is promised of that row), or it is ``"refused"``. In a layer, an item
            without a real token; its outputs are finite by default.
        hidden_slots: what a slot hidden from every query may hold: ``"any"`` number, including NaN
            and Inf, or only ``"finite"`` ones.
        masks: the forms it takes, of ``"boolean"``, ``"floating"`` and ``"lengths"``; ``"keys"``
            restricts them to one row for all queries; an empty tuple means no mask.
        mask_value: ``-inf``, or the number used in its place; ``"finite"`` if that is not known.
        internal_dtype: the dtype in which it computes; ``None`` for that of its inputs.
        gradients: whether it has a backward pass.
        causal: where the diagonal of ``is_causal`` ends: ``"bottom_right"`` or ``"top_left"``;
            ``"square"`` supports only L = S; ``"always"`` is causal whatever the caller asks.
        positions: ``"none"``: reordering the keys does not change the output; ``"relative"``:
            shifting all positions does not; ``"absolute"``: both may.
        extra_keys: number of keys that it adds itself, such as sinks or a key of zeros.
        per_head: whether its parameters differ along the leading sizes.
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


def freeze_conventions(spec: Any, allowed: Iterable[str] = _KEYS) -> None:
    """Check the ``conventions`` of a spec, and make them a read-only mapping of known values.

    Raises:
        SpecError: a key or its value is unknown.
    """
    conventions, where = spec.conventions, f"{spec.kind} {spec.name!r}"
    if not isinstance(conventions, Mapping):
        raise SpecError(
            f"{where}: conventions should map a key such as 'empty_rows' to its value, "
            f"not be {conventions!r}"
        )
    names = tuple(allowed)
    values = {key: _check_value(where, key, value, names) for key, value in conventions.items()}
    object.__setattr__(spec, "conventions", ReadOnly(values))


def _check_value(where: str, key: object, value: object, allowed: tuple[str, ...]) -> Any:
    if key not in allowed:
        hint = nearest(str(key), allowed)
        owner = " of a layer" if key in _KEYS else ""
        raise SpecError(f"{where}: {key!r} is no convention{owner}. {hint}")
    try:
        return _read(str(key), value)
    except (TypeError, ValueError):
        words = " or ".join(map(repr, KINDS.get(str(key), (True, False))))
        expected = _EXPECTED.get(str(key), words)
        text = f"{where}: convention {key} = {value!r}, but should be {expected}."
        raise SpecError(text) from None


_EXPECTED = {
    "masks": "a tuple of 'boolean', 'floating', 'lengths' and 'keys', or ()",
    "mask_value": "'-inf', a negative number, or 'finite' where that is not known",
    "internal_dtype": "None, " + " or ".join(map(repr, KINDS["internal_dtype"])),
    "extra_keys": "0 or how many keys it adds",
    "lse_empty": "a number, such as '-inf', 'inf' or 'nan'",
}


def _read(key: str, value: Any) -> Any:
    """The value of a convention, by its words or else by the type of its default.

    Raises:
        ValueError, TypeError: it is none.
    """
    default, known = getattr(Conventions, key), KINDS.get(key, ())
    if key == "masks":
        words = (value,) if isinstance(value, str) else tuple(value)
        # a mask of one row is boolean unless the convention says otherwise
        result: Any = ("boolean", *words) if words == ("keys",) else words
        is_right = all(word in known for word in words)
    elif known:
        result = str(value) if key == "lse_base" else value  # 2 is read as a number
        is_right = result in known or (key == "internal_dtype" and value is None)
    elif isinstance(value, bool) or isinstance(default, bool):
        result, is_right = value, isinstance(value, bool) and isinstance(default, bool)
    elif isinstance(default, int):
        result, is_right = value, isinstance(value, int) and value >= 0
    else:
        result = FINITE if (key, value) == ("mask_value", "finite") else float(value)
        is_right = key != "mask_value" or result < 0
    if not is_right:
        raise ValueError(value)
    return result


def literal_of(text: str) -> Any:
    """A literal, or else the text itself: ``scoring=additive``, ``causal=square``."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a backslash that escapes nothing
            return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def parse_convention(text: str) -> tuple[str, Any]:
    """Read ``KEY=VALUE``: a literal or a word; ``masks`` takes several, joined by ``+`` or ``,``.

    Raises:
        SpecError: there is no ``=``, or the key or its value is unknown.
    """
    key, separator, literal = (part.strip() for part in text.partition("="))
    if not separator:
        raise SpecError(f"--convention {text}: write KEY=VALUE, such as empty_rows=nan.")
    value = literal_of(literal)
    if key == "masks" and isinstance(value, str):
        words = literal.replace(",", "+").split("+")
        value = tuple(word.strip() for word in words if word.strip() not in ("", "none"))
    return key, _check_value("--convention", key, value, _KEYS)


def format_conventions(conventions: Mapping[str, Any]) -> str:
    """Format conventions as :func:`parse_convention` reads them, separated by commas."""
    return ", ".join(f"{key}={_format_value(value)}" for key, value in conventions.items())


def _format_value(value: Any) -> str:
    if isinstance(value, tuple):
        return "+".join(value) or "none"
    return "finite" if value == FINITE else str(value)
