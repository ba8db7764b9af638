"""The errors attnbench raises: each says what, where, got and expected, and what to do.

All derive from :class:`AttnbenchError`; the command line prints one as a single message, without a
traceback, and exits with 2. Each is also the built-in exception that a user would expect
(``ValueError`` for a size, ``TypeError`` for a dtype, ``LookupError`` for a name).
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
    """A call that the subject declares it does not take: neither a failure nor a pass."""


class StyleError(UsageError):
    """A target that cannot be called in the style that was named."""


class AddressError(UsageError):
    """A subject's address that cannot be read."""


class OptionError(AttnbenchError, TypeError):
    """An option that a subject does not have, or a value that it does not take."""


class ShapeError(AttnbenchError, ValueError):
    """A tensor of the wrong rank or size."""


class DtypeError(AttnbenchError, TypeError):
    """A tensor of the wrong dtype, or tensors of mixed dtypes."""


class DeviceError(AttnbenchError, ValueError):
    """A device that is not there, or tensors on several devices."""


class MaskError(AttnbenchError, ValueError):
    """A mask or a valid length that does not fit the scores."""


class SpecError(AttnbenchError, ValueError):
    """A spec that declares something impossible."""


class PluginError(AttnbenchError):
    """A plugin that could not be loaded, or gave something other than specs."""


class UnknownNameError(AttnbenchError, LookupError):
    """A name that no loaded plugin brings."""


class DuplicateNameError(AttnbenchError, LookupError):
    """A name that more than one plugin brings."""


class InputsError(AttnbenchError, ValueError):
    """A file of saved inputs that is missing, damaged or incomplete."""


class RecordError(AttnbenchError, ValueError):
    """A file of records that cannot be read or written."""


class JudgementError(AttnbenchError):
    """A subject that cannot be judged although no fault was found; the outcome is ``error``."""


class InvariantViolation(AttnbenchError, AssertionError):  # noqa: N818 -- a finding, not an error
    """What a check raises when its invariant does not hold.

    Args:
        message: the quantity, its value, and the value that it should have had.
        error: how far off, as a multiple of what the invariant allows; ``None`` if it has no scale.
        compared: what was compared and where, by name, for the script that shows it again; or
            ``lines`` of its own, which may call ``make`` and end with an assertion.
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
    """A hint that ends an error about an unknown name: the nearest known ones, or all of them."""
    names = sorted(set(known))
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return "Did you mean " + " or ".join(repr(c) for c in close) + "?"
    return "Known: " + (", ".join(names) if names else "none") + "."
