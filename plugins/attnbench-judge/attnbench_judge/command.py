"""``attnbench judge``: correctness and speed of code that nobody trusts."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnbench import commands as kit
from attnbench.errors import UsageError

if TYPE_CHECKING:
    from attnbench import Outcome
    from attnbench_judge.decision import Judgement


def command(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            help="Addresses of attention functions: path/to/file.py, path/to/file.py:NAME or "
            "package.module:NAME.",
            show_default=False,
        ),
    ] = None,
    style: Annotated[
        str | None,
        typer.Option(
            "--as", help="Style of call of the functions: sdpa or flash.", metavar="STYLE"
        ),
    ] = None,
    convention: kit.Convention = None,
    candidates: Annotated[
        Path | None,
        typer.Option("--candidates", help="A folder; every .py file in it is judged and ranked."),
    ] = None,
    profile: kit.Profile = "quick",
    length: Annotated[
        list[int] | None,
        typer.Option("--length", min=1, help="A length L = S to time at; may be repeated."),
    ] = None,
    set_name: Annotated[
        str | None,
        typer.Option("--set", help="Named set of cases to time, as of bench.", show_default=False),
    ] = None,
    invariant: kit.Invariants = None,
    seed: Annotated[
        int | None,
        typer.Option("--seed", help="Seed of all that is drawn; by default one that nobody knows."),
    ] = None,
    memory: Annotated[
        float,
        typer.Option(
            "--memory", min=0.5, help="Most GiB of memory of each process of a candidate."
        ),
    ] = 4.0,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.1, help="Most seconds for an answer.")
    ] = 60.0,
    total_timeout: Annotated[
        float,
        typer.Option("--total-timeout", min=0.1, help="Most seconds for all answers together."),
    ] = 900.0,
    as_json: kit.AsJson = False,
) -> int:
    """Judge attention functions that nobody trusts, such as kernels that a machine wrote.

    A candidate runs in a process of its own, confined as far as the system allows. Inputs are drawn
    after it is loaded, every timed call is a checked call, and clocks and verdict are out of its
    reach. A verdict is accepted, refused (with the name of the trick), failed (with the violated
    properties) or inconclusive. Calls that take no longer than the judge's messages are not scored;
    choose a greater --length. The report names what was not tried.
    """
    from attnbench_judge.court import Court
    from attnbench_judge.process.entry import Limits

    addresses = _targets(targets or [], candidates)
    limits = Limits(memory_gib=memory, call_s=timeout, total_s=total_timeout)
    options: dict[str, Any] = {
        "style": style,
        "conventions": dict(kit.parse_convention(text) for text in convention or ()),
        "profile": profile,
        "invariants": invariant or None,
        "seed": seed,
    }
    judgements: list[Judgement] = []
    errors: list[Exception] = []
    with Court(limits, set_name=set_name, lengths=tuple(length or ())) as court:
        kit.load_plugins(fork=True)
        gc.freeze()  # collecting would look at all of torch again and again
        try:
            for target in addresses:
                try:
                    judgements.append(court.judge(target, **options))
                except Exception as error:  # of one candidate, unless all have one
                    errors.append(error)
                    judgements.append(_unjudged(target, error))
                    if len(errors) == len(addresses):
                        raise
                if not as_json:
                    kit.print_line(_text(judgements[-1]))
        except KeyboardInterrupt:
            return kit.INTERRUPTED
    ranking = sorted(judgements, key=lambda one: (not one.ok, -(_speed(one) or 0)))
    if as_json:
        kit.print_json({"judgements": [judgement.as_data() for judgement in ranking]})
    elif len(ranking) > 1:
        _print_ranking(ranking)
    return kit.exit_code([status for judgement in judgements for status in judgement.statuses])


def _targets(targets: list[str], candidates: Path | None) -> list[str]:
    if candidates is not None:
        if not candidates.is_dir():
            raise UsageError(f"--candidates {candidates}: there is no such folder.")
        found = (p for p in candidates.glob("*.py") if p.is_file())
        files = sorted(p for p in found if not p.name.startswith("_"))
        if not files:
            raise UsageError(f"--candidates {candidates}: there is no .py file in it.")
        targets = [*targets, *map(str, files)]
    if not targets:
        raise UsageError("name a candidate, such as path/to/file.py:NAME, or give --candidates.")
    return targets


def _unjudged(target: str, error: Exception) -> Judgement:
    from attnbench_judge.decision import Judgement, RefusedError

    refused = RefusedError("not_judged", f"{type(error).__name__}: {error}")
    return Judgement(target, "refused", refused)


def _speed(judgement: Judgement) -> float | None:
    return judgement.score["speed_against_fused"]


def _text(result: Judgement) -> str:
    from attnbench_judge.decision import plain_text

    refusal = f" ({result.refusal})" if result.refusal else ""
    lines = [f"{result.target}: {result.verdict}{refusal}"]
    lines += [f"  {result.sentence}"] if result.sentence else []
    for outcome in result.outcomes:
        if not outcome.ok:
            lines.append(f"  {outcome.status} {outcome.invariant}: {outcome.reason}")
    for row in result.rows:
        if row.ratio is None or row.time_s is None:
            lines.append(f"  {row.case}: {row.status}, {row.reason}")
            continue
        if row.status != "ok":
            lines.append(f"  {row.case}: {row.time_s * 1e3:.3g} ms, not scored: {row.reason}")
            continue
        lines.append(
            f"  {row.case}: {row.time_s * 1e3:.3g} ms, {row.ratio:.2f} "
            f"({row.ratio_low:.2f} to {row.ratio_high:.2f}) times as fast as torch's fused "
            "attention"
        )
    lines.append(
        f"  {_properties(result.outcomes)}, {result.calls_right} of {result.calls} calls "
        f"were right, {result.calls_whole} of them compared whole; {result.seconds:.0f} s, "
        f"seed {result.seed}"
    )
    if result.ok and result.unranked:
        lines.append(f"  not ranked: {result.unranked}")
    if result.ok:
        lines.append(f"  not tried: {', '.join(result.untried)}")
    for name, reason in (result.missing or {}).items():
        lines.append(f"  not confined: {name}: {reason}")
    return "\n".join(map(plain_text, lines))


def _properties(outcomes: Sequence[Outcome]) -> str:
    """How many properties held, or why none was checked."""
    from attnbench_judge.trial import MOST_FAILURES

    ran = [outcome.status for outcome in outcomes if outcome.status != "skipped"]
    if not ran:
        why = "; ".join(f"{outcome.invariant}: {outcome.reason}" for outcome in outcomes)
        return f"no property was checked ({why})" if why else "no property was checked"
    stopped = len(ran) - ran.count("passed") == MOST_FAILURES
    rest = f" (stopped after {MOST_FAILURES} failures)" if stopped else ""
    return f"{ran.count('passed')} of {len(ran)} properties held{rest}"


def _print_ranking(ranking: list[Judgement]) -> None:
    from attnbench_judge.decision import plain_text

    rows = [
        {
            "rank": None if _speed(judgement) is None else place,
            "target": plain_text(judgement.target),
            "verdict": judgement.verdict,
            "refusal": judgement.refusal,
            "not ranked": judgement.unranked or None,
            **judgement.score,
        }
        for place, judgement in enumerate(ranking, 1)
    ]
    kit.print_table(rows, title="candidates")
