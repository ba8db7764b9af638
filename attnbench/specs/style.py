"""The declaration of a style: a way in which some code is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from attnbench.specs.common import check_callable, check_spec_name


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
