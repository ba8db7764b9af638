"""What is said of code that cannot be made or called, and what code itself refuses.

What was tried, what is missing, and what to add: ``...`` is where only a person can fill in.
"""

from __future__ import annotations

import opcode
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from attnbench.calling.making.sandbox import DownloadError, TooLargeError, TooLongError
from attnbench.calling.signature import Argument
from attnbench.errors import RefusalError, first_line, headline
from attnbench.processes.tracebacks import source_line_of

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (DownloadError, "it opens a connection, and nothing is downloaded here"),
    (TooLargeError, "give it a smaller size of its own"),
    (TooLongError, "give it less to do"),
    (RecursionError, "what it takes does not end"),
    (ModuleNotFoundError, "install that"),
)
_EXAMPLE = (
    "attnbench.check(module, example=(args, kwargs)) in Python; FILE.py:MODULE --example "
    "FILE.py:NAME here, where MODULE is an instance."
)
_WORDS = "query, key, value, memory, hidden, mask or lengths"
_FORM = re.compile(r"unpack|dimension|[0-9]D |dims|shape")
"""What is raised over another number of dimensions, and so says little."""


def in_one_line(error: BaseException | None, limit: int = 200) -> str:
    """The kind of an exception and the first line of its text, shortened."""
    text = f"{type(error).__name__}: {error}".strip().splitlines()[0]
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def not_made(
    target: Any, error: BaseException, tried: Sequence[str] = (), guessed: Sequence[str] = ()
) -> str:
    """Why no module can be made of a class, in two lines.

    Args:
        target: the class.
        error: what its constructor raised at last.
        tried: the calls of it that were tried, as Python for a ``size``.
        guessed: arguments whose names say nothing.
    """
    name = getattr(target, "__name__", str(target))
    place = source_line_of(error) or ""
    lines = [f"{name} cannot be made: {in_one_line(error)}{place and f' at {place}'}"]
    if tried:
        lines[0] += f" ({len(tried)} calls tried, the last {tried[-1].replace('=size', '=E')})"
    reason = next((text for kind, text in _REASONS if isinstance(error, kind)), "")
    names = [guess.rpartition(".")[2] for guess in guessed]
    missing = f"what {' and '.join(names)} should be" if names else "how it is made"
    start = f"{reason[0].upper()}{reason[1:]}, or say" if reason else "Say"
    call = tried[-1].replace("=size", "=E") if tried else f"{name}(...)"
    for each in names:
        call = re.sub(rf"\b{each}=(?:[^,()]+|[\w.]+\(\))(?=[,)])", f"{each}=...", call)
    if not names:  # what is no number of features is a guess, too
        call = re.sub(r"=(?!E\b)[^,()]+(?=[,)])", "=...", call)
    call = call if "..." in call else f"{name}(...)"
    lines.append(f'{start} {missing}, for E features: --make "{call}".')
    return "\n".join(lines)


def not_called(
    target: Any, arguments: Sequence[Argument], raised: Sequence[str], *, said: bool = False
) -> str:
    """Why no call of a callee fits: two lines, and the call that a person can complete.

    Args:
        target: a class, module or function.
        arguments: those of its forward.
        raised: a line for each call that was tried.
        said: whether somebody said what they are.
    """
    name = getattr(target, "__name__", type(target).__name__)
    required = [a for a in arguments if a.required]
    unknown = [a.name for a in required if a.role is None and not a.given]
    tried = "no call of it is known"
    if raised:
        pairs = [text for text in raised if ", " in text.partition(":")[0]]
        likely = (pairs if any(a.role == "query" for a in required) else []) or raised
        chosen = next((text for text in likely if not _FORM.search(text)), likely[0])
        layout, _, error = chosen.partition(": ")
        if layout.isupper():
            shapes = " and ".join(f"({', '.join(each)})" for each in layout.split(", "))
            chosen = f"{error}, given {shapes}"
        tried = f"of {len(raised)} calls that were tried the likeliest raises {chosen}"
    lines = [f"{name} cannot be called: {tried}"]
    if said:
        return "\n".join([*lines, f"That is as --call says. Show one call of it: {_EXAMPLE}"])
    read = ", ".join(f"{a.name} as {a.role}" for a in required if a.role) or "none says what it is"
    missing = f"what {' and '.join(unknown)} should be" if unknown else "which tensors it takes"
    lines.append(f"Its arguments were read by their names ({read}); say {missing}.")
    # what the names say was tried: where they say it of all, all may be something else
    known = {a.name: a.role if unknown and a.role else "..." for a in required}
    known |= {a.name: repr(a.given[0]) for a in required if a.given}
    call = ", ".join(f"{each}={role}" for each, role in known.items())
    if known:
        lines.append(f'Or say which is {_WORDS}, or its value: --call "f({call})".')
    lines.append(f"Or show one call, which a tensor of another shape needs: {_EXAMPLE}")
    return "\n".join(lines)


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
