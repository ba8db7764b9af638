"""The core's formats of a check's report, by the hook that plugins use for theirs."""

from __future__ import annotations

from collections.abc import Iterable

from attnbench.hookspecs import hookimpl
from attnbench.report.formats import github, junit, sarif
from attnbench.specs import Format

CORE = {
    format_.name: format_
    for format_ in (
        Format(name="json", render=lambda findings: str(findings.report.to_json())),
        Format(name="junit", render=junit.render),
        Format(name="sarif", render=sarif.render, located=True),
        Format(name="github", render=github.render, located=True),
    )
}


@hookimpl
def attnbench_formats() -> Iterable[Format]:
    """The formats of the core."""
    return CORE.values()
