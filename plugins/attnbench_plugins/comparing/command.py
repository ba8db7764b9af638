"""``attnbench compare``: whether B is faster or slower than A, with simultaneous intervals."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import UnknownNameError, UsageError
from attnbench import commands as option
from attnbench.errors import similar
from attnbench.timing import BenchCase, Selection, saved
from attnbench_plugins.comparing.checkouts import branches, checkout, commit_of
from attnbench_plugins.comparing.exchange import CONTRACT, Exchange, Side, quiet_core

if TYPE_CHECKING:
    from attnbench_plugins.comparing.duel import Duel
    from attnbench_plugins.comparing.verdict_tables import Verdicts


def compare(
    *targets: str,
    set_name: str | None = "compare",
    workload: Sequence[str] = (),
    inputs: Path | None = None,
    dtypes: Sequence[str] | None = None,
    device: str = "cpu",
    threads: int = 1,
    budget: float = 600.0,
    margin: float = 3.0,
) -> Verdicts:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    This is ``attnbench compare``, with its options as arguments; each side runs in a process of its
    own. After Ctrl-C, rows that are undecided by then stay ambiguous.

    Args:
        targets: revisions and subjects, or two subjects.
        set_name, workload, inputs: the cases; the last two replace the set.
        dtypes: replace those of the set.
        device, threads: device and number of threads of torch.
        budget: seconds.
        margin: percent; smaller changes are same or slight.

    Raises:
        UsageError: the targets cannot be compared.
        UnknownNameError: a target is no revision or subject.
    """
    from attnbench_plugins.comparing.verdict_tables import compared

    request = classify(targets)
    name = None if workload or inputs else set_name
    selection = Selection(name, workload, inputs=inputs, dtypes=dtypes)
    cases = selection.cases((device,))
    cases += [saved(**selection.saved(device))] if inputs else []
    options: dict[str, Any] = {"margin": margin / 100, "budget_s": budget}
    interrupted = True
    with duel_of(request, cases, threads=threads, **options) as duel:
        bar = option.progress(len(duel.rows) * max(duel.looks), "comparing")
        with contextlib.suppress(KeyboardInterrupt), bar as advance:
            for rows in duel.run():
                advance(rows, f"pair {duel.pairs}")
            interrupted = False
    return compared(duel, interrupted=interrupted)


def command(
    targets: Annotated[
        list[str],
        typer.Argument(
            metavar="REVISION [REVISION] [SUBJECTS]",
            help="One revision to compare with the working tree, or two revisions, and the "
            "subjects (by default those of [tool.attnbench], or all of this repository). Or two "
            "subjects, such as two files or distributions. The verdict is on the second.",
        ),
    ],
    set_name: option.Set = "compare",
    workload: option.Workload = None,
    inputs: option.Inputs = None,
    dtype: option.Dtypes = None,
    device: option.Device = "cpu",
    threads: option.Threads = 1,
    budget: Annotated[
        float, typer.Option("--budget", min=0.0, help="Seconds after which no further pair starts.")
    ] = 600.0,
    margin: Annotated[
        float,
        typer.Option(
            "--margin",
            min=0.0,
            help="Changes up to this many percent are same or, if certain, slightly slower or "
            "faster.",
        ),
    ] = 3.0,
    as_json: option.AsJson = False,
) -> int:
    """Decide for each case whether B is faster or slower than A, the same, or ambiguous.

    A change that is certain but within --margin is slightly faster or slightly slower.

    Revisions and subjects are measured here in pairs, with both sides taking turns on one core: 15
    pairs, then up to 30 and 60 for undecided rows. Exits with 1 if a row is slower, and with 4 if a
    row is ambiguous.
    """
    comparison = compare(
        *targets,
        set_name=set_name,
        workload=workload or (),
        inputs=inputs,
        dtypes=dtype,
        device=device,
        threads=threads,
        budget=budget,
        margin=margin,
    )
    if as_json:
        option.print_json(comparison.data)
    else:
        for part in comparison.parts:
            option.print_line(part) if isinstance(part, str) else option.print_table(part)
    rows = comparison.data["rows"]
    if comparison.data["interrupted"]:
        return option.INTERRUPTED
    if not rows:  # all are new in B
        return option.exit_code(["inconclusive"])
    if not any(row["timed"] or row["differs"] for row in rows):
        reason = f"{rows[0]['subject']}: {rows[0]['reason']}"
        raise UsageError(f"nothing could be compared: {reason}")
    return option.exit_code(row["verdict"] for row in rows)


@dataclass(frozen=True)
class Request:
    """The classified arguments of ``compare``."""

    revisions: tuple[str, ...] = ()
    subjects: tuple[str, ...] = ()


def classify(arguments: Sequence[str]) -> Request:
    """Classify the arguments as revisions and subjects.

    Raises:
        UsageError: they cannot be combined.
        UnknownNameError: an argument is neither.
    """
    revisions: list[str] = []
    subjects: list[str] = []
    for text in arguments:
        is_address = ":" in text or "(" in text
        is_revision = not is_address and commit_of(Path.cwd(), text) is not None
        (revisions if is_revision else subjects).append(text)
        if not is_address and not is_revision and text not in (names := _names()):
            raise UnknownNameError(
                f"{text!r} is not a revision of this repository, or a subject. "
                f"{similar(text, [*branches(Path.cwd()), *names])}".rstrip()
            )
    if len(revisions) > 2:
        raise UsageError(f"at most two revisions can be named; got {', '.join(revisions)}.")
    if not revisions and len(subjects) != 2:
        raise UsageError(
            f"got {', '.join(subjects) or 'nothing'}: name one or two revisions and the "
            "subjects to compare at them, or two subjects."
        )
    if not subjects:
        subjects = option.check_defaults().get("targets", [])
    return Request(tuple(revisions), tuple(subjects))


@functools.cache
def _names() -> list[str]:
    """The names of the installed subjects."""
    option.warm_up_children()
    return [row["subject"] for row in option.ask("subject_rows", targets=None)]


@contextlib.contextmanager
def duel_of(
    request: Request, cases: Sequence[BenchCase], *, threads: int = 1, **options: Any
) -> Iterator[Duel]:
    """Set up both sides of a duel, and always clean up at the end.

    Raises:
        UsageError: a side cannot be built, or there is nothing to compare.
    """
    from attnbench_plugins.comparing.duel import Duel, Row

    core = quiet_core()
    notes = []
    if core is None:
        notes.append("Both sides ran on any core: this system does not let a process choose one.")
    with contextlib.ExitStack() as stack:
        sides = _sides(request, stack)
        contract = replace(CONTRACT, threads=threads)
        exchange = Exchange(sides, core if threads == 1 else None, contract)
        stack.enter_context(exchange)
        rows = [
            Row(a if a == b else f"{b} against {a}", case, (a, b))
            for a, b in _subjects(request, exchange, notes)
            for case in cases
        ]
        names = [side.name for side in sides] if request.revisions else request.subjects
        yield Duel(exchange, rows, names, notes, **options)


def _sides(request: Request, stack: contextlib.ExitStack) -> tuple[Side, Side]:
    folder = Path.cwd()
    if not request.revisions:
        return Side(request.subjects[0], folder), Side(request.subjects[1], folder)
    is_file = [option.parse_address(text).is_file for text in request.subjects]
    build = not is_file or not all(is_file)
    revisions = [*request.revisions, None][:2]
    a, b = (stack.enter_context(checkout(folder, one, build=build)) for one in revisions)
    return a, b


def _subjects(request: Request, exchange: Exchange, notes: list[str]) -> list[tuple[str, str]]:
    """The subjects to compare, as the address on each side."""
    if not request.revisions:
        return [(request.subjects[0], request.subjects[1])]
    shared: list[str] = []
    for text in request.subjects or (None,):  # a file's attribute may hold several
        names, told = exchange.common(text)
        shared += names
        notes += told
    if not shared and not request.subjects:
        a, b = (side.name for side in exchange.sides)
        raise UsageError(
            f"{a} and {b} have no subject in common whose code is in this repository; name one, "
            f"such as path/to/file.py:ATTRIBUTE. {' '.join(notes)}".rstrip()
        )
    return [(name, name) for name in shared]
