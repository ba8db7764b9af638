"""Docstrings are in Google style with Sphinx roles, for editors; the site is Markdown."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod|data|attr|exc):`(~?)([\w.]+)`")


class Roles(griffe.Extension):
    """Turn roles into code, and the double colon before a code block into one."""

    def on_object(self, *, obj: griffe.Object, **given: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            text = ROLE.sub(_as_code, obj.docstring.value)
            obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)


def _as_code(role: re.Match[str]) -> str:
    short, name = role.groups()
    return f"`{name.rpartition('.')[2] if short else name}`"
