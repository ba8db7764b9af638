"""Addresses: the names of subjects in calls, on the command line and in records.

additive                           a scoring function or a mechanism
additive/factorised                a kernel of a scoring function
my-scores:cosine                   of one distribution, if two register the same name
multi_head(scoring=additive)       with options: a separate subject
path/to/file.py:SPEC               not installed: a spec, or an iterable of specs
path/to/file.py:SPECS#cosine       one of such an iterable, by its name
package.module:SPEC
package.module:function as sdpa    a function, module or class, with its style of call
soft with hidden_slots=finite      with other conventions than those of its spec
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench.errors import AddressError
from attnbench.specs.conventions import parse_convention

__all__ = ["Address", "format_options", "item_of", "parse_address", "styled", "without_style"]

_BARE = re.compile(r"[\w.-]+")
_STYLED = re.compile(r"(.*?)(?:\s+as\s+(\w+(?:\([^()]*\))?))?(?:\s+with\s+(\w+\s*=.*))?", re.DOTALL)


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Args:
        name: name of a scoring function or mechanism, or an attribute of a file or module.
        kernel: name of one of its kernels.
        source: a distribution, a file's path (it ends in ``.py``) or a module.
        options: keyword arguments for ``make``.
        style: style of call of the target.
        conventions: conventions that replace those of the spec.
        item: name of one of the specs that the attribute lists; ``""`` means all of them.
    """

    name: str
    kernel: str | None = None
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    style: str | None = None
    conventions: Mapping[str, Any] = field(default_factory=dict)
    item: str = ""

    @property
    def is_file(self) -> bool:
        """Whether the source is a file's path."""
        return self.source is not None and self.source.endswith(".py")


def parse_address(text: str) -> Address:
    """Parse an address.

    Raises:
        AddressError: it has no name, or its options are not ``key=value`` pairs.
    """
    bare, style, conventions = _split_style(text)
    head, options = _split_options(bare)
    if head.endswith(".py"):
        raise AddressError(_complaint(text, f"it does not say which attribute of {head} is meant"))
    source, separator, name = head.rpartition(":")
    if separator and not source:
        raise AddressError(_complaint(text, "there is nothing before ':'"))
    kernel: str | None = None
    name, chosen, item = name.partition("#")
    if chosen and not source:
        raise AddressError(_complaint(text, "'#' selects from a file's or module's attribute"))
    if "/" in name:
        name, kernel = name.split("/", 1)
    for part in (name, kernel, *(item.split("/", 1) if chosen else ())):
        if part is not None and not _BARE.fullmatch(part):
            raise AddressError(_complaint(text, f"{part!r} is not a name"))
    return Address(
        name=name,
        kernel=kernel,
        source=source or None,
        options=options,
        style=style,
        conventions=conventions,
        item=item,
    )


def item_of(text: str, name: str) -> str:
    """The address of one of the specs that the attribute of an address lists."""
    head = _split_options(without_style(text))[0]
    return f"{head}#{name}{text.strip()[len(head) :]}"


def styled(text: str, style: str | None, conventions: Iterable[str]) -> str:
    """An address followed by a style and conventions, each ``KEY=VALUE``."""
    given = ", ".join(conventions)
    return text + (f" as {style}" if style else "") + (f" with {given}" if given else "")


def without_style(text: str) -> str:
    """An address without its style and conventions."""
    return _STYLED.fullmatch(text.strip())[1]  # type: ignore[index]  # it always matches


def _split_style(text: str) -> tuple[str, str | None, Mapping[str, Any]]:
    match = _STYLED.fullmatch(text.strip())
    assert match is not None
    bare, style, given = match.groups()
    pairs = [part for part in (given or "").split(",") if part.strip()]
    return bare, style, dict(parse_convention(part) for part in pairs)


def _complaint(text: str, what: str) -> str:
    return (
        f"cannot read the address {text!r}: {what}.\n"
        "Write name, scoring/kernel, distribution:name, name(option=value) or "
        "path/to/file.py:ATTRIBUTE, followed by #NAME for one of the specs that it lists."
    )


def _split_options(text: str) -> tuple[str, Mapping[str, Any]]:
    text = text.strip()
    if not text.endswith(")"):
        return text, {}
    # the options' own "(" is the one that the last ")" closes: a path may hold others
    depth = 0
    for start in range(len(text) - 1, -1, -1):
        depth += (text[start] == ")") - (text[start] == "(")
        if depth == 0:
            return text[:start], _parse_options(text, text[start:])
    raise AddressError(_complaint(text, "its brackets do not match"))


def _parse_options(text: str, bracketed: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f{bracketed}", mode="eval").body
    except (SyntaxError, ValueError):
        raise AddressError(_complaint(text, "its options are not key=value pairs")) from None
    if not isinstance(call, ast.Call) or call.args or any(k.arg is None for k in call.keywords):
        raise AddressError(_complaint(text, "its options are not key=value pairs"))
    return {str(k.arg): _option_value(k.value, bracketed, text) for k in call.keywords}


def _option_value(node: ast.expr, bracketed: str, text: str) -> Any:
    """A literal, or else the text, as in ``scoring=additive``, which names a scoring function."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        segment = ast.get_source_segment(f"f{bracketed}", node)
        if segment is None:
            raise AddressError(_complaint(text, "an option has no value")) from None
        return segment


def format_options(options: Mapping[str, Any]) -> str:
    """The options as in an address, sorted by name; ``""`` without any."""
    if not options:
        return ""
    return "(" + ", ".join(f"{key}={value}" for key, value in sorted(options.items())) + ")"
