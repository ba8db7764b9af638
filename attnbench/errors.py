"""The errors that attnbench raises.

A message says what is wrong and where, what was given and expected, and what to do. All errors
derive from :class:`AttnbenchError`. The command line prints their message without a traceback and
exits with 2. Each is also a built-in exception of the matching kind: ``ValueError`` for a size,
``TypeError`` for a dtype, ``LookupError`` for a name.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

__all__ = [
    "AddressError",
    "AttnbenchError",
    "DeviceError",
    "DtypeError",
    "DuplicateNameError",
    "InputsError",
    "InvariantViolation",
    "JudgementError",
    "MaskError",
    "OptionError",
    "PluginError",
    "RecordError",
    "RefusalError",
    "ShapeError",
    "SpecError",
    "StyleError",
    "UnknownNameError",
    "UsageError",
    "check_name",
    "headline",
    "nearest",
]


_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")
_CLEAR = 10
"""What is off by so many times what is allowed is not taken for rounding."""


class AttnbenchError(Exception):
    """Base of every error that attnbench raises on purpose."""


class UsageError(AttnbenchError, ValueError):
    """A call or a command that cannot be carried out as it was written."""


class RefusalError(UsageError):
    """A call that the subject declares as unsupported; it neither fails nor passes."""


class StyleError(UsageError):
    """A target that cannot be called in the style that was named."""


class AddressError(UsageError):
    """An address of a subject that cannot be parsed."""


class OptionError(AttnbenchError, TypeError):
    """An option that a subject does not have, or a value that it does not accept."""


class ShapeError(AttnbenchError, ValueError):
    """A tensor of the wrong rank or size."""


class DtypeError(AttnbenchError, TypeError):
    """A tensor of the wrong dtype, or tensors of mixed dtypes."""


class DeviceError(AttnbenchError, ValueError):
    """A device that is not available, or tensors on several devices."""


class MaskError(AttnbenchError, ValueError):
    """A mask or a valid length that does not fit the scores."""


class SpecError(AttnbenchError, ValueError):
    """A spec that declares something impossible."""


class PluginError(AttnbenchError):
    """A plugin that could not be loaded, or returned something other than specs.

    Args:
        args: the message.
        raised: the last line of the traceback, where its code raised something.
    """

    def __init__(self, *args: object, raised: str = "") -> None:
        super().__init__(*args)
        self.raised = raised


class UnknownNameError(AttnbenchError, LookupError):
    """A name that no loaded plugin registers."""


class DuplicateNameError(AttnbenchError, LookupError):
    """A name that more than one plugin registers."""


class InputsError(AttnbenchError, ValueError):
    """A file of saved inputs that is missing, damaged or incomplete."""


class RecordError(AttnbenchError, ValueError):
    """A file of records that cannot be read or written."""


class JudgementError(AttnbenchError):
    """A check that can neither pass nor fail a subject; the outcome is ``error``."""


class InvariantViolation(AttnbenchError, AssertionError):  # noqa: N818 -- a finding, not an error
    """Raised by a check if its invariant does not hold; its fields become those of the failure.

    Args:
        message: the finding as a sentence; by default it is made of the other fields.
        quantity: what has a wrong value, as an expression: ``weights.sum(-1)``.
        place: index of the worst element of the quantity.
        got: its value there, a number or words.
        expected: the value that it should have, a number or words such as ``"at least 0"``.
        other: what else has the expected value, if it is not simply what is right.
        allowed: largest allowed difference.
        error: the error as a multiple of what the invariant allows; ``None`` if it has no scale.
        program: the calls that were made of a cache, in words.
        compared: what is compared, for what explains the failure: ``got`` and ``expected``, or
            ``condition`` and ``values``; and ``again``, a function of the subject that does only
            what failed, of a check that tries much.
    """

    def __init__(
        self,
        message: str = "",
        *,
        quantity: str = "",
        place: Sequence[int] = (),
        got: float | str | None = None,
        expected: float | str | None = None,
        other: str = "",
        allowed: float | None = None,
        error: float | None = None,
        program: str = "",
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        self.quantity, self.place = quantity, tuple(place)
        self.got, self.expected, self.other = got, expected, other
        self.allowed, self.error = allowed, error
        self.program, self.compared = program, compared
        super().__init__(message or self._sentence())

    def reworded(self, message: str, **changes: Any) -> InvariantViolation:
        """The same finding with another sentence, and with other values of some fields."""
        names = ("quantity", "place", "got", "expected", "other", "allowed", "error")
        same = {name: getattr(self, name) for name in (*names, "program", "compared")}
        return InvariantViolation(message, **{**same, **changes})

    def _sentence(self) -> str:
        where = f"{self.quantity}{list(self.place) or ''}"
        got, expected = self.got, self.expected
        if isinstance(got, str) or isinstance(expected, str):
            shown = got if isinstance(got, str) or got is None else f"{got:.6g}"
            return f"{where} = {shown}, but {self._should()} {expected}"
        if got is None or expected is None:
            return where
        if got != got and expected != expected:
            what = self.other or "what it should be"
            return f"{where} = nan, and {what} has nan too: NaN agrees with nothing"
        digits = ".6g" if f"{got:.6g}" != f"{expected:.6g}" else ".17g"
        text = f"{where} = {got:{digits}}, but {self._should()} {expected:{digits}}"
        if self.allowed is None:
            return text
        if not self.allowed:
            return f"{text} (they must be equal)"
        is_finite = self.error is not None and math.isfinite(self.error)
        off = f"; off by {self.error:.3g} times that" if is_finite else ""
        return f"{text} (± {self.allowed:.2g}{off})"

    def _should(self) -> str:
        return f"{self.other} has" if self.other else "should be"


def ending_here(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """Let an error that attnbench raises on purpose end at the caller's line, with no other below.

    Its message says what was wrong; the frames between would say how that was found out.
    """

    @functools.wraps(function)
    def called(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        __tracebackhide__ = True  # as pytest reads it
        try:
            return function(*args, **kwargs)
        except AttnbenchError as error:
            raise error.with_traceback(None) from None

    return called


def first_line(text: str) -> str:
    """The first line of a text that is not empty, with those that it announces by a colon."""
    said = ""
    for line in filter(None, map(str.strip, text.splitlines())):
        said = f"{said} {line}".strip()
        if not line.endswith(":"):
            break
    return said


def may_be_rounding(error: BaseException | None) -> bool:
    """Whether an error is so few times what is allowed that a reader takes it for rounding."""
    times = getattr(error, "error", None)
    return times is not None and times < _CLEAR


def message_of(error: BaseException) -> str:
    """The first line of an exception's message; its type if it has none."""
    return first_line(str(error)) or type(error).__name__


def headline(error: BaseException) -> str:
    """The type of an exception and the first line of its message."""
    return ": ".join(filter(None, (type(error).__name__, first_line(str(error)))))


def check_name(
    kind: str, name: str, known: Collection[str], error: type[Exception] = UnknownNameError
) -> None:
    """Raise, with the nearest name, unless a name is one of the known ones of a kind."""
    if name not in known:
        raise error(f"no {kind} is called {name!r}. {nearest(name, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known names, or all of them."""
    names = sorted(set(known))
    return similar(name, names) or "Known: " + (", ".join(names) if names else "none") + "."


def similar(name: str, known: Iterable[str]) -> str:
    """A question about the nearest known names; empty if none is near."""
    close = difflib.get_close_matches(name, sorted(set(known)), n=3, cutoff=0.5)
    return f"Did you mean {' or '.join(map(repr, close))}?" if close else ""


def either(names: Iterable[str]) -> str:
    """Names as text, with "or" before the last one."""
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last
