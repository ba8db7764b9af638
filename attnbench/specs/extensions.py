"""What a plugin brings beside specs and invariants: formats, styles of call, and clues."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from attnbench.errors import SpecError
from attnbench.specs.common import check_callable, check_spec_name, check_type


@dataclass(frozen=True, kw_only=True, eq=False)
class Format:
    """A format of ``attnbench check --format NAME``.

    Args:
        name: the name of the format.
        render: ``render(findings)`` returns the text of the report. ``findings.report`` is the
            :class:`attnbench.CheckReport`, ``findings.statements`` has the statement of each
            invariant by name, and ``findings.place_of(outcome)`` is the file and line of a failure,
            with the fields ``file`` and ``line``, or ``None``.
        located: whether it asks for places, since finding them makes each subject that fails.

    Raises:
        SpecError: a field has the wrong type.
    """

    kind: ClassVar[str] = "format"

    name: str
    render: Callable[[Any], str]
    located: bool = False

    def __post_init__(self) -> None:
        check_spec_name(self.kind, self.name)
        check_callable(self, "render")
        check_type(self, "located", bool, "True or False")


@dataclass(frozen=True, kw_only=True, eq=False)
class Style:
    """A style of call that small calls do not find out, as of a library that is no torch.

    Args:
        name: what ``--as`` and ``style=`` take.
        fits: ``fits(target)`` gives ``None``, or the reason why a target is not called so.
        adapt: ``adapt(target, **fields)`` gives the spec of a target; ``fields`` are fields of the
            spec, which override what it knows.

    Raises:
        SpecError: a field has the wrong type.
    """

    kind: ClassVar[str] = "style"

    name: str
    fits: Callable[[Any], str | None]
    adapt: Callable[..., Any]

    def __post_init__(self) -> None:
        check_spec_name(self.kind, self.name)
        check_callable(self, "fits", "adapt")


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
