"""The errors that attnbench raises.

A message says what is wrong and where, what was given and expected, and what to do. All errors
derive from :class:`AttnbenchError`. The command line prints their message without a traceback and
exits with 2. Each is also a built-in exception of the matching kind: ``ValueError`` for a size,
``TypeError`` for a dtype, ``LookupError`` for a name.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any

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
    "nearest",
]


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
    """A plugin that could not be loaded, or returned something other than specs."""


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
    """Raised by a check if its invariant does not hold.

    Args:
        message: the quantity, its value, and the value that it should have had.
        error: the error as a multiple of what the invariant allows; ``None`` if it has no scale.
        compared: the compared values and their place, by name, for the script that reproduces the
            failure; or ``lines``, a script that may call ``make`` and ends with an assertion.
    """

    def __init__(
        self,
        message: str,
        *,
        error: float | None = None,
        compared: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.error = error
        self.compared = compared


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known names, or all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "Known: " + (", ".join(names) if names else "none") + "."
