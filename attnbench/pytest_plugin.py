"""``pytest --attnbench[=NAMES]``: one test for each subject and invariant, in any project.

Unless it is asked for, this does nothing, and imports neither torch nor hypothesis.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnbench.checking.parametrization import Check
    from attnbench.subject.subject import Subject

__all__: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("attnbench", "property checks of attention")
    group.addoption(
        "--attnbench",
        nargs="?",
        const="",
        default=None,
        metavar="NAMES",
        help="check these subjects, or all that are installed; addresses, separated by commas",
    )
    group.addoption(
        "--attnbench-profile",
        default="quick",
        metavar="PROFILE",
        help="how hard to look: quick (default), default or thorough",
    )
    group.addoption(
        "--attnbench-seed", type=int, default=None, metavar="SEED", help="seed of what is drawn"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> None:
    """Keep a bare ``--attnbench`` from taking the path behind it for its names."""
    args[:] = ["--attnbench=" if arg == "--attnbench" else arg for arg in args]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Collect the checks beside the files, if they are asked for."""
    report = yield
    names = collector.config.getoption("--attnbench")
    if names is not None and isinstance(collector, pytest.Session):
        report.result.append(Checks.from_parent(collector, name="attnbench", nodeid="attnbench"))
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Say which plugins could not be loaded, if checks were asked for."""
    if config.getoption("--attnbench") is None:
        return
    from attnbench.registry.catalog import registry

    for plugin in registry().failures:
        terminalreporter.write_line(
            f"attnbench: plugin {plugin.name!r} ({plugin.distribution} {plugin.version}) failed to "
            f"load: {plugin.message}",
            yellow=True,
        )


class Checks(pytest.Collector):
    """The checks of all subjects."""

    def collect(self) -> Iterator[CheckItem]:
        """One item for each subject and invariant."""
        from attnbench.checking.api import all_targets
        from attnbench.checking.parametrization import checks_of
        from attnbench.errors import AttnbenchError

        options = self.config.option
        try:
            pairs = checks_of(
                _split(options.attnbench) or all_targets(options.attnbench_profile),
                profile=options.attnbench_profile,
                seed=options.attnbench_seed,
            )
        except AttnbenchError as error:
            raise self.CollectError(f"--attnbench: {error}") from None
        for subject, check in pairs:
            name = f"attnbench[{subject.name}-{check.invariant.name}]"
            yield CheckItem.from_parent(self, name=name, nodeid=name, subject=subject, check=check)


def _split(names: str) -> list[str]:
    """The addresses between commas; a comma in an address's brackets is its own."""
    parts, depth, start = [], 0, 0
    for place, sign in enumerate(names):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            parts.append(names[start:place])
            start = place + 1
    parts.append(names[start:])
    return [part.strip() for part in parts if part.strip()]


class CheckItem(pytest.Item):
    """One invariant on one subject."""

    def __init__(self, *, subject: Subject, check: Check, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.subject, self.check = subject, check

    def runtest(self) -> None:
        """Run it."""
        self.check(self.subject)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The outcome's text, without a traceback."""
        from attnbench.checking.parametrization import CheckFailedError

        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """Where it is said to be from."""
        return "attnbench", None, self.name
