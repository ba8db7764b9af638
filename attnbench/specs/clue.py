"""What an explainer says of the failures of a subject."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnbench.errors import SpecError
from attnbench.specs.common import check_type


@dataclass(frozen=True, kw_only=True)
class Clue:
    """A line under the failures of a subject.

    Args:
        text: what was run and seen, or, of the kind ``"try"``, what to try.
        file, line: the line of code that it is about, if it is about one.
        kind: ``"seen"`` or ``"try"``.

    Raises:
        SpecError: a field has the wrong type.
    """

    text: str
    file: str | None = None
    line: int | None = None
    kind: Literal["seen", "try"] = "seen"

    def __post_init__(self) -> None:
        check_type(self, "text", str, "a sentence")
        if self.kind not in ("seen", "try"):
            raise SpecError(f"kind of a clue is {self.kind!r}, but should be 'seen' or 'try'.")
