"""Options that several commands share, so that names and help texts agree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from attnbench.calling.styles import STYLES
from attnbench.errors import UsageError, either
from attnbench.registry.address import Address, parse_address
from attnbench.specs.conventions import parse_convention

RESULTS = Path("results/attnbench")
"""The default folder of the records."""

Targets = Annotated[
    list[str] | None,
    typer.Argument(
        help="Addresses of subjects, such as additive, additive/factorised, "
        "'multi_head(scoring=additive)' or path/to/file.py:SPEC. By default all installed ones.",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        help="Run on a cluster: tcp://HOST:PORT or tls://HOST:PORT of a Dask scheduler, or the "
        "file that its --scheduler-file wrote.",
        show_default=False,
    ),
]
Device = Annotated[str, typer.Option("--device", help="A torch device, such as cpu or cuda.")]
Jobs = Annotated[
    int, typer.Option("-j", "--jobs", min=0, help="Number of processes; 0 for one per core.")
]
Memory = Annotated[
    float,
    typer.Option("--memory", min=0.1, help="Most GiB of memory for the process of a subject."),
]
Profile = Annotated[
    str, typer.Option("--profile", help="Number of cases to check: quick, default or thorough.")
]
Baseline = Annotated[
    str | None,
    typer.Option(
        "--baseline",
        help="Subject with which those of its kind are paired, instead of scaled_dot or, for "
        "layers, causal_attention.",
        show_default=False,
    ),
]

Timing = Annotated[
    str,
    typer.Option(
        "--timing",
        help="call: time a call as a user makes it. device: on a CUDA device, time a replayed "
        "graph, without the overhead of Python.",
    ),
]
Workload = Annotated[
    list[str] | None,
    typer.Option("--workload", help="Sizes of a real model, such as bert_base; may be repeated."),
]
Set = Annotated[str, typer.Option("--set", help="Named set of cases.")]
Invariants = Annotated[
    list[str] | None,
    typer.Option("--invariant", help="An invariant to run; may be repeated."),
]
OneCase = Annotated[
    str | None,
    typer.Option("--case", metavar="ID", help="Run this case alone, such as a printed one."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="A safetensors file with your own query, key, value and optional attn_mask, after "
        "projection and head split.",
    ),
]
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="A torch device; may be repeated. By default the CPU and the accelerator, if any.",
        show_default=False,
    ),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", help="A dtype that replaces those of the set; may be repeated."),
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")]
MeasuringSeconds = Annotated[
    float,
    typer.Option(
        "--seconds",
        min=0.0,
        help="Seconds for the measurements; each row is measured in at least three processes.",
    ),
]
Results = Annotated[Path, typer.Option("--results", help="Folder of the records.")]
CheckedDtypes = Annotated[
    list[str] | None, typer.Option("--dtype", help="A dtype to check; may be repeated.")
]
InvariantTimeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        min=0.1,
        help="Most seconds for an invariant on a subject; by default 120, 240 or 900, by profile.",
    ),
]
FailFast = Annotated[
    bool, typer.Option("--fail-fast", help="Stop at the first outcome that is not good.")
]
Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        metavar="FORMAT[=FILE]",
        help="text, json, junit, sarif, github, or a plugin's, printed or in a file; may be "
        "repeated.",
    ),
]
Exempt = Annotated[
    list[str] | None,
    typer.Option(
        "--exempt",
        metavar="NAME=REASON",
        help="An invariant, or 'SUBJECT: INVARIANT', that is not run; may be repeated.",
    ),
]
UpdateExempt = Annotated[
    bool,
    typer.Option(
        "--update-exempt",
        help="Write today's failures into the table tool.attnbench.exempt of pyproject.toml, so "
        "that only new ones fail, and remove from it what holds again.",
    ),
]
Verbose = Annotated[
    bool, typer.Option("-v", "--verbose", help="Show every outcome, with the cases it saw.")
]
BenchSet = Annotated[
    str | None,
    typer.Option(
        "--set",
        help="Named set of cases: smoke, default or full. Without this option it is default, or "
        "none if --length, --workload or --inputs is given.",
        show_default=False,
    ),
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length",
        min=1,
        help="A length S: attention is measured at L = S, and a layer at prefill and decode of one "
        "sequence; may be repeated.",
    ),
]
Cache = Annotated[str, typer.Option("--cache", help="warm, or cold: flushed before each call.")]
Processes = Annotated[
    int,
    typer.Option("--processes", min=1, help="Processes that measure every subject and case."),
]
Budget = Annotated[
    float,
    typer.Option(
        "--budget", min=0.0, help="Seconds after which no further pair, or process, starts."
    ),
]
RowTimeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, help="Most seconds for a row in one process or block."),
]
RunName = Annotated[str | None, typer.Option("--run", help="Name of the run and of its file.")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue --run, or the last run in the folder.")
]
Sides = Annotated[
    list[str],
    typer.Argument(
        metavar="REVISION [REVISION] [SUBJECTS]",
        help="One revision to compare with the working tree, or two revisions, and the subjects "
        "(by default those of [tool.attnbench], or all of this repository). Or two subjects, such "
        "as two files or distributions. The verdict is on the second.",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        "--margin",
        min=0.0,
        help="Changes up to this many percent are same or, if certain, slightly slower or faster.",
    ),
]
Seed = Annotated[
    int | None,
    typer.Option("--seed", help="Seed of the drawn cases; by default the same every time."),
]
Strict = Annotated[
    bool, typer.Option("--strict-plugins", help="Stop at once if any plugin fails to load.")
]
Style = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="STYLE",
        help=f"Style of call of a target that is a function, module or class: {either(STYLES)}.",
    ),
]
Call = Annotated[
    str | None,
    typer.Option(
        "--call",
        metavar="CALL",
        help='With --as, what its arguments are called: "f(queries=query, keys=key, '
        'values=value)" passes query as queries.',
    ),
]
Example = Annotated[
    str | None,
    typer.Option(
        "--example",
        metavar="FILE:NAME",
        help="Arguments of one call of the target, a module or a function: (args, kwargs), a "
        "tuple, a dict or a tensor, or a function that gives them. Nothing is made then.",
    ),
]
Make = Annotated[
    str | None,
    typer.Option(
        "--make",
        metavar="CALL",
        help='How a class is made, for E features: "Attention(Config(n_embd=E, n_head=2))". By '
        "default its arguments are found out by their names.",
    ),
]
Convention = Annotated[
    list[str] | None,
    typer.Option(
        "--convention",
        metavar="KEY=VALUE",
        help="A convention that the target follows, such as empty_rows=nan; may be repeated.",
    ),
]


def parse_targets(
    targets: list[str] | None,
    style: str | None = None,
    conventions: list[str] | None = None,
    call: str | None = None,
    make: str | None = None,
    example: str | None = None,
) -> list[Address] | None:
    """Parse all addresses, and add style, conventions and making to each; ``None`` without any.

    An example is a style of its own, as it says how the target is called.

    Raises:
        AddressError, SpecError: an address or a convention cannot be read.
        UsageError: a style or convention is given without a target, or to one that names another,
            or a call without a style.
    """
    if not targets and (style is not None or conventions or call or make or example):
        raise UsageError(
            "--as, --call, --make, --example and --convention describe a target, but none is "
            "named; add one."
        )
    if example is not None:
        if style is not None:
            raise UsageError("--example says how the target is called, and so does --as; drop one.")
        style = f"example({parse_address(example)})"
    values = dict(parse_convention(text) for text in conventions or ())
    addresses = [parse_address(target).called(style, values) for target in targets or ()]
    if make is not None:
        addresses = [replace(address, made=make.strip()) for address in addresses]
    if call is not None:
        addresses = [with_call(address, call) for address in addresses]
    return addresses or None


def with_call(address: Address, call: str) -> Address:
    """An address whose style is followed by the names of a call.

    Raises:
        UsageError: it names no style, or the call already, or this is none.
    """
    signature, style = re.fullmatch(r"\s*\w+(\([^()]*\))\s*", call), address.style
    if style is None:
        problem = "it describes the call of a style, but --as names none"
    elif "(" in style:
        problem = f"'as {style}' describes the call already"
    elif signature is None:
        problem = "it is no call"
    else:
        return replace(address, style=style + signature[1])
    raise UsageError(
        f"--call {call}: {problem}; write it like "
        '--as sdpa --call "f(queries=query, keys=key, values=value)".'
    )
