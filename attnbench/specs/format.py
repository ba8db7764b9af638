"""The declaration of a format in which a check is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

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
