"""``pytest --attnbench[=NAMES]``: one test for each subject and invariant, in any project.

Without the option, this does nothing, and imports neither torch nor hypothesis.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnbench.checking.parametrization import Check
    from attnbench.subject.subject import Subject

__all__: list[str] = []


@pytest.fixture
def attention_close() -> Callable[..., None]:
    """:func:`attnbench.assert_attention_close`, without an import."""
    import attnbench

    function: Callable[..., None] = attnbench.assert_attention_close
    return function


@pytest.fixture
def check_attention() -> Callable[..., None]:
    """Assert that a module with an example, or the attention in a model with a batch, is right.

    ``check_attention(module, example=...)`` is :func:`attnbench.check`, and
    ``check_attention(model, batch=...)`` is :func:`attnbench.check_calls`; either takes further
    options.
    """
    import attnbench

    def asserted(target: Any, *, batch: Any = None, **options: Any) -> None:
        if batch is None:
            report = attnbench.check(target, **options)
        else:
            report = attnbench.check_calls(target, batch, **options)
        assert report.ok, report

    return asserted


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    from attnbench.calling import STYLES
    from attnbench.errors import either

    group = parser.getgroup("attnbench", "property checks of attention")
    group.addoption(
        "--attnbench",
        nargs="?",
        const="",
        default=None,
        metavar="NAMES",
        help="check these subjects (addresses, separated by commas), or all installed ones",
    )
    group.addoption(
        "--attnbench-as",
        default=None,
        metavar="STYLE",
        help="style of call of the subjects of --attnbench, if they are functions, modules or "
        f"classes: {either(STYLES)}",
    )
    group.addoption(
        "--attnbench-profile",
        default=None,
        metavar="PROFILE",
        help="number of cases to check: quick (the default), default or thorough; overrides the "
        "profile of parametrize_with_checks",
    )
    group.addoption(
        "--attnbench-format",
        choices=("text", "github"),
        default="text",
        help="github adds annotations at the lines of the subjects' code, and the job's summary",
    )
    group.addoption(
        "--attnbench-seed",
        type=int,
        default=None,
        metavar="SEED",
        help="seed of the drawn cases; by default that of --hypothesis-seed",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(args: list[str]) -> None:
    """Keep a bare ``--attnbench`` from using the path that follows as its names."""
    args[:] = ["--attnbench=" if arg == "--attnbench" else arg for arg in args]


def _seed(config: pytest.Config) -> int | None:
    """The seed of the command line; that of Hypothesis, which may be any text, comes second."""
    seed: int | None = config.getoption("--attnbench-seed")
    text = config.getoption("--hypothesis-seed", None)
    if seed is None and text is not None:
        return int(text) if str(text).isdecimal() else zlib.crc32(str(text).encode())
    return seed


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Apply options of the command line to the tests of ``parametrize_with_checks``."""
    options = {"profile": config.getoption("--attnbench-profile"), "seed": _seed(config)}
    changes = {name: value for name, value in options.items() if value is not None}
    if not changes or "attnbench.checking.parametrization" not in sys.modules:
        return
    from attnbench.checking.parametrization import Check
    from attnbench.checking.profiles import PROFILES
    from attnbench.errors import nearest

    profile = changes.get("profile", "quick")
    if profile not in PROFILES:
        raise pytest.UsageError(
            f"--attnbench-profile: no profile is called {profile!r}. {nearest(profile, PROFILES)}"
        )
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        for name, value in params.items():
            if isinstance(value, Check):
                params[name] = replace(value, **changes)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Keep the statistics of the searches in a check for ``--hypothesis-show-statistics``."""
    is_requested = item.config.getoption("--hypothesis-show-statistics", None)
    if not is_requested or "attnbench.checking.hypothesis_engine" not in sys.modules:
        return (yield)
    from hypothesis.statistics import collector, describe_statistics

    texts: list[str] = []

    def note(statistics: Any) -> None:
        statistics["nodeid"] = item.nodeid
        texts.append(describe_statistics(statistics))

    try:
        with collector.with_value(note):  # type: ignore[arg-type]  # it is typed as None
            return (yield)
    finally:
        if texts:
            item.hypothesis_statistics = "\n".join(texts)  # type: ignore[attr-defined]  # the same


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the outcome of a check that failed, as plain data that a worker can send."""
    report = yield
    outcome = getattr(call.excinfo.value, "outcome", None) if call.excinfo else None
    if outcome is not None and item.config.getoption("--attnbench-format") == "github":
        from attnbench.report.findings import code_line

        subject = call.excinfo.value.subject  # type: ignore[union-attr]  # ours
        report.attnbench = (outcome.to_data(), code_line(subject))  # type: ignore[attr-defined]  # a report takes any
    return report


def _annotate(reporter: pytest.TerminalReporter) -> None:
    """Print annotations of the checks that failed."""
    reports = reporter.getreports("failed")
    rows = [report.attnbench for report in reports if hasattr(report, "attnbench")]
    if not rows:
        return
    from attnbench.checking.check_report import CheckReport
    from attnbench.checking.outcomes import Outcome
    from attnbench.registry.catalog import registry
    from attnbench.report.findings import Findings, place_at, rendered
    from attnbench.specs import Format

    outcomes = tuple(Outcome.from_data(data) for data, _ in rows)
    places = {data["subject"]: place_at(*line) for data, line in rows if line}
    reporter.ensure_newline()
    findings, known = Findings(CheckReport(outcomes), {}, places), registry().all_of(Format)
    is_there = "github" in [each.name for each in known]
    missing = "attnbench: no plugin brings the format github"
    reporter.write_line(rendered("github", findings) if is_there else missing)


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
    if config.getoption("--attnbench-format") == "github":
        _annotate(terminalreporter)
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
        from attnbench.checking.parametrization import checks_of
        from attnbench.checking.plan import all_targets
        from attnbench.errors import AttnbenchError, UsageError
        from attnbench.registry.address import split_addresses

        options = self.config.option
        profile = options.attnbench_profile or "quick"
        try:
            if options.attnbench_as and not split_addresses(options.attnbench):
                raise UsageError("--attnbench-as describes a subject, and --attnbench names none.")
            pairs = checks_of(
                split_addresses(options.attnbench) or all_targets(profile),
                style=options.attnbench_as,
                profile=profile,
                seed=_seed(self.config),
            )
        except AttnbenchError as error:
            raise self.CollectError(f"--attnbench: {error}") from None
        for subject, check in pairs:
            name = f"attnbench[{subject.name}-{check.invariant.name}]"
            yield CheckItem.from_parent(self, name=name, nodeid=name, subject=subject, check=check)


class CheckItem(pytest.Item):
    """One invariant on one subject."""

    def __init__(self, *, subject: Subject, check: Check, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.subject, self.check = subject, check

    def runtest(self) -> None:
        """Run the check."""
        self.check(self.subject)

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The outcome's text, without a traceback."""
        from attnbench.checking.parametrization import CheckFailedError

        if isinstance(excinfo.value, CheckFailedError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[str, None, str]:
        """The location in reports: no file and no line."""
        return "attnbench", None, self.name
