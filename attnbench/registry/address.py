"""Addresses: how a subject is named in a call, on the command line and in a record.

additive                           a scoring function or a mechanism
additive/factorised                a kernel of a scoring function
my-scores:cosine                   of one distribution, where two bring the same name
multi_head(scoring=additive)       with options: a subject of its own
path/to/file.py:SPEC               what is not installed: a spec, or an iterable of specs
package.module:SPEC
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnbench.errors import AddressError

__all__ = ["Address", "format_options", "parse_address"]

_BARE = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Address:
    """A parsed address.

    Args:
        name: of a scoring function or mechanism, or the attribute of a file or module.
        kernel: name of a kernel of it.
        source: a distribution, a file's path (it ends in ``.py``) or a module.
        options: keyword arguments for ``make``.
    """

    name: str
    kernel: str | None = None
    source: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_file(self) -> bool:
        """Whether the source is a file's path."""
        return self.source is not None and self.source.endswith(".py")


def parse_address(text: str) -> Address:
    """Read an address.

    Raises:
        AddressError: it has no name, or its options are not ``key=value`` pairs.
    """
    head, options = _split_options(text)
    if head.endswith(".py"):
        raise AddressError(_complaint(text, f"it does not say which attribute of {head} is meant"))
    source, separator, name = head.rpartition(":")
    if separator and not source:
        raise AddressError(_complaint(text, "there is nothing before ':'"))
    kernel: str | None = None
    if "/" in name:
        name, kernel = name.split("/", 1)
    for part in (name, kernel):
        if part is not None and not _BARE.fullmatch(part):
            raise AddressError(_complaint(text, f"{part!r} is not a name"))
    return Address(name=name, kernel=kernel, source=source or None, options=options)


def _complaint(text: str, what: str) -> str:
    return (
        f"cannot read the address {text!r}: {what}.\n"
        "Write name, scoring/kernel, distribution:name, name(option=value) or "
        "path/to/file.py:ATTRIBUTE."
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
    """A literal, or the text of anything else: ``scoring=additive`` names a scoring function."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        segment = ast.get_source_segment(f"f{bracketed}", node)
        if segment is None:
            raise AddressError(_complaint(text, "an option has no value")) from None
        return segment


def format_options(options: Mapping[str, Any]) -> str:
    """The options as an address writes them, sorted by name; ``""`` if there are none."""
    if not options:
        return ""
    return "(" + ", ".join(f"{key}={value}" for key, value in sorted(options.items())) + ")"
