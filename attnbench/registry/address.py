"""Addresses: the names of subjects in calls, on the command line and in records.

additive                           a scoring function or a mechanism
additive/factorised                a kernel of a scoring function
my-scores:cosine                   of a named distribution, if two register the same name
multi_head(scoring=additive)       with options: a separate subject
path/to/file.py:SPEC               not installed: a spec, or an iterable of specs
path/to/file.py:SPECS#cosine       one spec of such an iterable, by its name
'a path, quoted/file.py':SPEC      the same, for a path that would be ambiguous unquoted
path/to/file.py                    all of a file: its specs, or else what looks like attention
package.module:SPEC
file.py:Layer made Layer(dim=E)    a class, with the Python that makes it for E features
package.module:function as sdpa    a function, module or class, with its style of call
soft with hidden_slots=finite      with other conventions than those of its spec

An address is parsed once, where it comes in, and passed on as an :class:`Address`; ``str`` gives
text that parses back to it.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from attnbench.errors import AddressError, StyleError
from attnbench.specs.common import ReadOnly
from attnbench.specs.conventions import format_conventions, literal_of, parse_convention

_HEAD = re.compile(
    r"(?P<name>[\w.-]+|\*)(?:/(?P<kernel>[\w.-]+))?(?:#(?P<item>[\w.-]+(?:/[\w.-]+)?))?"
)
_TAIL = re.compile(
    r"(?:\s+made\s+(?P<made>\w.*?\)))?"
    r"(?:\s+as\s+(?P<style>\w+(?:\([^()]*\))?))?"
    r"(?:\s+with\s+(?P<with>\w+\s*=.*))?",
    re.DOTALL,
)
_QUOTED = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)
_WHOLE = re.compile(
    r"""(?P<path>[^:'"]+\.py|'[^']+\.py'|"[^"]+\.py")(?P<tail>\s+(?:made|as|with)\s.*)?"""
)
_CONTINUES = re.compile(r"\s*\w+\s*=")


ALL = "*"
"""The name of an address that means all of a file or module."""


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Args:
        name: name of a scoring function or mechanism, or an attribute of a file or module;
            :data:`ALL` for all of it.
        kernel: name of one of its kernels.
        source: a distribution, a file's path (it ends in ``.py``) or a module.
        options: keyword arguments for ``make``: literals, or text such as another address.
        style: style of call of the target.
        conventions: conventions that replace those of the spec.
        item: name of one of the specs that the attribute lists; ``""`` means all of them.
        made: Python that makes the module of a class; ``""`` to find out how.
    """

    name: str
    kernel: str | None = None
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    style: str | None = None
    conventions: Mapping[str, Any] = field(default_factory=dict)
    item: str = ""
    made: str = ""

    def __post_init__(self) -> None:
        for attribute in ("options", "conventions"):
            object.__setattr__(self, attribute, ReadOnly(getattr(self, attribute)))

    @property
    def is_file(self) -> bool:
        """Whether the source is a file's path."""
        return self.source is not None and self.source.endswith(".py")

    @property
    def key(self) -> str:
        """``name`` or ``scoring/kernel``."""
        return f"{self.name}/{self.kernel}" if self.kernel else self.name

    def __str__(self) -> str:
        rest = self.key + (f"#{self.item}" if self.item else "") + format_options(self.options)
        rest += f" made {self.made}" if self.made else ""
        rest += f" as {self.style}" if self.style else ""
        rest += f" with {format_conventions(self.conventions)}" if self.conventions else ""
        if self.source is None:
            return rest
        bare_text, quoted_text = f"{self.source}:{rest}", f"{self.source!r}:{rest}"
        return bare_text if _parts(bare_text) == _parts(quoted_text) else quoted_text

    def called(self, style: str | None, conventions: Mapping[str, Any]) -> Address:
        """The same address with a style of call and further conventions.

        Raises:
            StyleError: it names another style.
        """
        if style is not None and self.style not in (None, style):
            raise StyleError(
                f"{self} says 'as {self.style}', but the style {style!r} is given, too."
            )
        merged = {**self.conventions, **conventions}
        return replace(self, style=style or self.style, conventions=merged)


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        AddressError: it has no name, or its options are not ``key=value`` pairs.
        SpecError: a convention is unknown, or its value is.
    """
    source, head, options, tail = _parts(text)
    pairs = split_outside(tail["with"] or "")
    return Address(
        name=head["name"],
        kernel=head["kernel"],
        source=source,
        options=_read_options(options) or {},
        style=tail["style"],
        conventions=dict(parse_convention(pair) for pair in pairs),
        item=head["item"] or "",
        made=tail["made"] or "",
    )


def split_addresses(text: str) -> list[str]:
    """Split at the commas between addresses, not at those within one."""
    addresses: list[str] = []
    for part in split_outside(text):
        if addresses and _CONTINUES.match(part):  # another convention of the address before
            addresses[-1] += f", {part}"
        else:
            addresses.append(part)
    return addresses


def split_outside(text: str) -> list[str]:
    """Split at commas outside brackets and quotes; parts are stripped, and empty ones dropped."""
    parts, depth, start, place = [], 0, 0, 0
    while place < len(text):
        sign = text[place]
        # an apostrophe within a word does not open a quotation
        quotation = (
            _QUOTED.match(text, place) if place == start or text[place - 1] in " =([{,:" else None
        )
        depth += (sign in "([{") - (sign in ")]}")
        if quotation:
            place = quotation.end()
            continue
        if sign == "," and depth <= 0:
            parts.append(text[start:place])
            start = place + 1
        place += 1
    return [part.strip() for part in (*parts, text[start:]) if part.strip()]


def format_options(options: Mapping[str, Any]) -> str:
    """Format the options as in an address, sorted by name; ``""`` if there are none."""
    if not options:
        return ""
    return (
        "("
        + ", ".join(f"{key}={_format_value(value)}" for key, value in sorted(options.items()))
        + ")"
    )


_Parts = tuple[str | None, dict[str, Any], str, dict[str, Any]]


def _parts(text: str) -> _Parts:
    """Split into source, head, options with their brackets, and tail; the first split that fits."""
    complaint = ""
    for source, rest in _sources(text.strip()):
        head = _HEAD.match(rest)
        if head is None or (source is None and (head["item"] or head.group().endswith(".py"))):
            continue
        if source is None and head["name"] == ALL:
            continue
        rest = rest[head.end() :]
        options = _options_text(rest)
        tail = _TAIL.fullmatch(rest[len(options) :])
        if tail is not None and source != "":
            return source, head.groupdict(), options, tail.groupdict()
        if rest.startswith("(") and not options:
            complaint = complaint or "its options are not key=value pairs, or not closed"
    raise AddressError(_complaint(text, complaint or _reason(text)))


def _sources(text: str) -> Iterator[tuple[str | None, str]]:
    """Each way to split a text into a source and what follows it."""
    yield None, text
    whole = _WHOLE.fullmatch(text)
    if whole:
        path = whole["path"]
        yield literal_of(path) if _QUOTED.fullmatch(path) else path, ALL + (whole["tail"] or "")
    quotation = _QUOTED.match(text)
    if quotation and text[quotation.end() : quotation.end() + 1] == ":":
        yield literal_of(quotation.group()), text[quotation.end() + 1 :]
    for colon in re.finditer(":", text):
        yield text[: colon.start()], text[colon.end() :]


def _reason(text: str) -> str:
    text = text.strip()
    if text.startswith(":"):
        return "there is nothing before ':'"
    if "#" in text and ":" not in text:
        return "'#' selects from a file's or module's attribute"
    return f"{text.rpartition(':')[2]!r} is not a name"


def _complaint(text: str, reason: str) -> str:
    return (
        f"cannot read the address {text!r}: {reason}.\n"
        "Write name, scoring/kernel, distribution:name, name(option=value) or "
        "path/to/file.py:ATTRIBUTE, followed by #NAME for one of the specs that it lists, by "
        "'made CLASS(...)', 'as STYLE' and 'with KEY=VALUE, KEY=VALUE'. A path may be quoted."
    )


def _options_text(text: str) -> str:
    """The options at the start of a text, with their brackets; ``""`` if there are none."""
    if text.startswith("("):
        for bracket in re.finditer(r"\)", text):
            if _read_options(text[: bracket.end()]) is not None:
                return text[: bracket.end()]
    return ""


def _read_options(text: str) -> dict[str, Any] | None:
    """The options between brackets; ``None`` if they are not ``key=value`` pairs."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about a backslash that escapes nothing
            call = ast.parse(f"f{text}", mode="eval").body
    except (SyntaxError, ValueError):
        return None
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        return None
    source = f"f{text}"
    values = {str(k.arg): ast.get_source_segment(source, k.value) or "" for k in call.keywords}
    return {key: literal_of(value) for key, value in values.items()}


def _format_value(value: Any) -> str:
    """Format an option's value; text has no quotes unless reading it back requires them."""
    if isinstance(value, str):
        options = _read_options(f"(x={value})")
        same = options is not None and list(options.items()) == [("x", value)]
        return value if same else repr(value)
    source = repr(value)
    literals = (source, re.sub(r"\binf\b", "1e999", source))  # no literal is called inf
    return next((literal for literal in literals if literal_of(literal) == value), repr(str(value)))
