"""What code itself refuses, and an exception in one line."""

from __future__ import annotations

import opcode
import re
from collections.abc import Iterator
from contextlib import contextmanager

from attnbench.errors import RefusalError, first_line, headline


def in_one_line(error: BaseException | None, limit: int = 200) -> str:
    """The kind of an exception and the first line of its text, shortened."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


_REFUSAL = re.compile(
    r"\bnot (?:yet |currently )?(?:implemented|supported)\b"
    r"|\b(?:is|are) un(?:supported|implemented)\b"
    r"|\bonly supports?\b|\b(?:does|do)(?: not|n't) support\b|\bno available kernel\b"
    r"|\bonly .*\b(?:is|are) supported\b",
    re.IGNORECASE,
)
"""A sentence by which a callee, or a kernel below it, says what it does not take."""

_HEADLINE_REFUSAL = re.compile(r"un(?:supported|implemented) (?!operand|format)", re.IGNORECASE)
"""A refusal without a verb, which counts only where a ``raise`` of the callee says it."""

_MASK_REFUSAL = re.compile(r"masks? (?:must|should|has to|have to|needs? to) be\b", re.IGNORECASE)

_NEEDS_GPU = re.compile(
    r"not compiled with CUDA|no NVIDIA|(?:must|should) be (?:on )?(?:a )?(?:cuda|gpu)\b"
    r"|\bneeds? (?:a )?(?:cuda|gpu)\b|\brequires? (?:a )?(?:cuda|gpu)\b|0 active drivers"
    r"|expected (?:a )?(?:cuda|gpu)\b|expected .*\b(?:to be|is|are) (?:on (?:a )?)?(?:cuda|gpu)\b"
    r"|\bonly (?:supports?|works?|runs?|available|implemented|on|for)\b.*\b(?:cuda|gpu)\b",
    re.IGNORECASE,
)
"""A sentence that asks for a GPU; one that names the devices it found is a fault of the callee."""


def _is_stated(error: BaseException) -> bool:
    """Whether a ``raise`` or ``assert`` made it, and not an operation that failed."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None or trace.tb_lasti < 0:
        return False
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] == opcode.opmap["RAISE_VARARGS"]


def refusal_in(error: Exception, name: str, *, masked: bool, on_cpu: bool = True) -> str | None:
    """What a callee refuses by an exception; ``None`` if it is a fault.

    Args:
        error: what the call raised.
        name: name of the callee.
        masked: whether the call has a mask or is causal. Without either, saying what a mask must
            be is no reason to raise.
        on_cpu: whether the tensors are on the CPU; elsewhere nothing can need a GPU.
    """
    line, message = first_line(str(error)), headline(error)
    if on_cpu and _NEEDS_GPU.search(line):
        return f"{name} needs a GPU ({message}): check it with --device cuda"
    said = _REFUSAL.search(line) or (masked and _MASK_REFUSAL.search(line))
    stated = _is_stated(error)
    if stated:
        said = said or _HEADLINE_REFUSAL.match(line)
    # kernels below torch raise RuntimeError; other errors that no statement raised are Python's
    if isinstance(error, NotImplementedError) or (said and (stated or type(error) is RuntimeError)):
        return f"{name} refuses it: {message}"
    return None


@contextmanager
def refusals(name: str, *, masked: bool, on_cpu: bool = True) -> Iterator[None]:
    """Convert exceptions by which a callee refuses a call to :class:`RefusalError`.

    Args:
        name, masked, on_cpu: as of :func:`refusal_in`.
    """
    try:
        yield
    except RefusalError:
        raise
    except (AssertionError, NotImplementedError, RuntimeError, ValueError, TypeError) as error:
        reason = refusal_in(error, name, masked=masked, on_cpu=on_cpu)
        if reason is None:
            raise
        raise RefusalError(reason) from error
