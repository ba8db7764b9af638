"""The causes in words, the clues that point at each, and what allows each: ``causes.json``."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any


@functools.cache
def known_causes() -> Mapping[str, Any]:
    """The causes in words, and the clues that point at each."""
    file = resources.files("attnbench.checking").joinpath("causes.json")
    causes: Mapping[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return causes


@functools.cache
def table() -> tuple[tuple[str, str | None], ...]:
    """Invariants in order, the most specific first, each with the cause that it points at."""
    causes, parts = known_causes(), ("specific", "general", "late")
    return tuple((name, cause) for part in parts for name, cause in causes[part])


def shown_by(cause: str) -> list[str]:
    """The invariants that show a cause, the best first."""
    names = [*known_causes()["shown_by"].get(cause, ())]
    return list(dict.fromkeys([*names, *(name for name, other in table() if other == cause)]))


def mistake_of(explained: str) -> str:
    """The name of a mistake without the number of its variant."""
    return re.sub(r"_\d+$", "", explained)


def cause_of_mistake(explained: str) -> str:
    """The name of the cause that a mistake has, with or without the number of its variant."""
    return str(known_causes()["mistakes"][mistake_of(explained)])


def is_form(named: str | None) -> bool:
    """Whether what a failure names is a form of a cause, which its property points at."""
    return named in known_causes()["forms"] and named not in known_causes()["causes"]


def cause_in_words(cause: str, mistakes: Iterable[str] = ()) -> str:
    """A cause in words; the cause that another plugin's invariant names is its own description.

    Where the mistakes that have it are all of one form, it is in the words of that form.
    """
    causes = known_causes()
    own = [name for name in mistakes if causes["mistakes"].get(mistake_of(name)) == cause]
    numbers = [name.rpartition("_")[2] for name in own if name != mistake_of(name)]
    forms = {causes["forms"].get(mistake_of(name)) for name in own}
    text: str | None = forms.pop() if len(forms) == 1 else None
    if text is None or ("{n}" in text and len(numbers) > 1):
        text = causes["causes"].get(cause, cause)
    return text.replace("{n}", "".join(numbers))
