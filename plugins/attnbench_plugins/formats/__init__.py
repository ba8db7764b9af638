"""The built-in formats of a check's report; each is imported when it is rendered."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from importlib import import_module
from typing import Any

import attnbench


def _render(module: str, findings: Any) -> str:
    return str(import_module(f"{__name__}.{module}").render(findings))


@attnbench.hookimpl
def attnbench_formats() -> Iterable[attnbench.Format]:
    """JSON, JUnit XML, SARIF, and GitHub's annotations."""
    yield attnbench.Format(name="json", render=lambda findings: str(findings.report.to_json()))
    yield attnbench.Format(name="junit", render=partial(_render, "junit"))
    for name in ("sarif", "github"):
        yield attnbench.Format(name=name, render=partial(_render, name), located=True)
