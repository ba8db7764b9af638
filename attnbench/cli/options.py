"""Options that several commands share, so that names and help texts agree, and the exit codes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from attnbench.calling import CALLED, STYLES
from attnbench.errors import UsageError, either
from attnbench.registry.address import Address, parse_address
from attnbench.specs.conventions import parse_convention

OK = 0
VIOLATED = 1
"""An invariant is violated, or a benchmark regressed."""
USAGE = 2
"""Wrong usage: the command raised an :class:`~attnbench.errors.AttnbenchError`."""
FAILED_PLUGIN = 3
"""A plugin failed to load, crashed or timed out."""
INCONCLUSIVE = 4
INTERRUPTED = 130

_CODES = {
    **dict.fromkeys(("crashed", "timeout", "error"), FAILED_PLUGIN),
    **dict.fromkeys(("failed", "slower"), VIOLATED),
    **dict.fromkeys(("inconclusive", "ambiguous"), INCONCLUSIVE),
}


def exit_code(statuses: Iterable[str], plugins: Iterable[Mapping[str, Any]] = ()) -> int:
    """The first code that applies, from statuses and the rows of the plugins that were loaded."""
    codes = {_CODES.get(status, OK) for status in statuses}
    if any(plugin["status"] == "failed" for plugin in plugins):
        codes.add(FAILED_PLUGIN)
    return next((c for c in (FAILED_PLUGIN, VIOLATED, INCONCLUSIVE) if c in codes), OK)


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
Style = Annotated[
    str | None,
    typer.Option(
        "--as",
        metavar="STYLE",
        help=f"Style of call of a function, module or class: {either(STYLES)}, or a plugin's.",
    ),
]
Call = Annotated[
    str | None,
    typer.Option(
        "--call",
        metavar="CALL",
        help='What the arguments of a target are: "f(state=query, outputs=memory, seen=mask)"; '
        'with --as, what they are called: "f(queries=query, keys=key, values=value)" passes query '
        "as queries.",
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
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Strict = Annotated[
    bool, typer.Option("--strict-plugins", help="Stop at once if any plugin fails to load.")
]
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
Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="A torch device; may be repeated. By default the CPU and the accelerator, if any.",
        show_default=False,
    ),
]
Jobs = Annotated[
    int, typer.Option("-j", "--jobs", min=0, help="Number of processes; 0 for one per core.")
]
Profile = Annotated[
    str, typer.Option("--profile", help="Number of cases to check: quick, default or thorough.")
]
Invariants = Annotated[
    list[str] | None, typer.Option("--invariant", help="An invariant to run; may be repeated.")
]
Set = Annotated[
    str | None, typer.Option("--set", help="Named set of cases: smoke, default, full or compare.")
]
Workload = Annotated[
    list[str] | None,
    typer.Option("--workload", help="Sizes of a real model, such as bert_base; may be repeated."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(
        "--inputs",
        help="A safetensors file with your own query, key, value and optional attn_mask, after "
        "projection and head split.",
    ),
]
Dtypes = Annotated[
    list[str] | None,
    typer.Option("--dtype", help="A dtype that replaces the usual ones; may be repeated."),
]
Threads = Annotated[int, typer.Option("--threads", min=1, help="Threads of torch.")]
Results = Annotated[Path, typer.Option("--results", help="Folder of the records.")]


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


def as_typed(targets: list[str] | None, addresses: list[Address] | None) -> list[str]:
    """The targets as a command names them alone, with what other options say of them."""
    pairs = zip(targets or (), addresses or (), strict=True)
    return [shlex.quote(t if parse_address(t) == each else str(each)) for t, each in pairs]


def is_one_of_a_file(addresses: list[Address] | None) -> bool:
    """Whether the only target is one thing of a file."""
    return addresses is not None and len(addresses) == 1 and addresses[0].is_file


_CALL = re.compile(r"""\s*\w+(\((?:[^()'"]|'[^']*'|"[^"]*")*\))\s*""")
"""A call with no other inside it; brackets may stand in its strings."""


def with_call(address: Address, call: str) -> Address:
    """An address whose style is followed by the names of a call; without one, it says their roles.

    Raises:
        UsageError: it names the call already, or this is none.
    """
    signature, style = _CALL.fullmatch(call), address.style
    if style is not None and "(" in style:
        problem = f"'as {style}' describes the call already"
    elif signature is None:
        problem = "it is no call that says roles or constants alone"
    else:
        return replace(address, style=(style or CALLED) + signature[1])
    raise UsageError(
        f"--call {call}: {problem}; write it like "
        '--call "f(queries=query, keys=key, values=value)".'
    )
