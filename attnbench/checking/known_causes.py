"""The causes in words, the clues that point at each, and what allows each: ``causes.json``."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from importlib import resources
from typing import Any


@functools.cache
def known_causes() -> Mapping[str, Any]:
    """The causes in words, and the clues that point at each."""
    file = resources.files("attnbench.checking").joinpath("causes.json")
    causes: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return causes


def cause_in_words(cause: str) -> str:
    """A cause in words; the cause that another plugin's invariant names is its own description."""
    text: str = known_causes()["causes"].get(cause, cause)
    return text
