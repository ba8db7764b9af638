"""``python -m attnbench_peers.sweep PACKAGE...``: each class called ``*Attention``, in one line.

Each class is checked by itself, in a child process and for a limited time of the processor. Between
tabs a line has the class, ``checked``, ``refused`` or ``fails``, the number of properties that
hold, and what fails, why it was refused, and what stopped it before the end. Of classes with the
same source one is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import math
import pkgutil
import re
import resource
import time
from collections.abc import Iterator
from typing import Any

from torch import nn

from attnbench.commands import Task, Workers

_LIKELY = re.compile(r"attention|model|layers|transformer|attn|activation")
_PATIENCE = 6
"""How many times its limit of the processor a class may wait for the next property."""
_MEMORY_GIB = 8.0
_HERE = "attnbench_peers.sweep"  # not __name__, which is __main__ where the command runs


def classes_of(package: str) -> Iterator[tuple[str, type[nn.Module]]]:
    """The classes of a package whose names end in ``Attention``, by module and name."""
    top = importlib.import_module(package)
    found = pkgutil.walk_packages(top.__path__, f"{package}.", onerror=lambda name: None)
    seen: set[str] = set()
    for place in (package, *(module.name for module in found)):
        if not _LIKELY.search(place) or ".modular_" in place:  # the sources of other files
            continue
        with contextlib.suppress(Exception, SystemExit):  # one that cannot be imported has none
            module = importlib.import_module(place)
            for name, value in sorted(vars(module).items()):
                if name.endswith("Attention") and _is_own(value, place):
                    text = _plain_source(value)
                    if text not in seen:
                        seen.add(text)
                        yield place, value


def _is_own(value: object, place: str) -> bool:
    """Whether it is a class of modules that is defined in a place and can be called."""
    return (
        inspect.isclass(value)
        and value.__module__ == place
        and issubclass(value, nn.Module)
        and not inspect.isabstract(value)
        and value.forward is not nn.Module.forward
    )


def _plain_source(cls: type[nn.Module]) -> str:
    """The source of a class without its own name; its address where there is none."""
    try:
        text = inspect.getsource(cls).split("\n", 1)[1]
    except (OSError, TypeError, IndexError):
        return f"{cls.__module__}:{cls.__qualname__}"
    prefix = cls.__name__.removesuffix("Attention")
    return re.sub(r"\s+", " ", text.replace(prefix, "") if prefix else text)


def line_of(place: str, cls: type[nn.Module], limit_s: float) -> str:
    """The line of a class."""
    name = f"{place}:{cls.__name__}"
    arguments = {"place": place, "name": cls.__name__, "limit_s": limit_s}
    told, stopped = [], ""
    with Workers() as workers:
        workers.submit(
            Task(name, f"{_HERE}:told", arguments, _PATIENCE * limit_s, _MEMORY_GIB, fork=True)
        )
        for event in workers.events():
            if event.kind == "value":
                told.append(event.value)
            elif event.kind != "done":
                stopped = event.reason
    if "SIGXCPU" in stopped:
        stopped = f"CPU limit of {limit_s:g} s"
    failed = [text for kind, text in told if kind in ("failed", "crashed")]
    refused = [text for kind, text in told if kind == "refused"]
    held = sum(kind == "passed" for kind, _ in told)
    status = "fails" if failed else "checked" if ("made", "") in told[:1] else "refused"
    status = "refused" if refused else status
    detail = " ".join(" ".join([*(failed or refused), *([stopped] if stopped else [])]).split())
    return f"{name}\t{status}\t{held}\t{detail}"


def told(place: str, name: str, limit_s: float) -> Iterator[tuple[str, str]]:
    """Yield what is found out about a class, as it comes, for so many seconds of the processor."""
    import attnbench.adapters
    import attnbench.testing

    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + math.ceil(limit_s), -1))
    try:
        spec: Any = attnbench.adapters.spec_of(getattr(importlib.import_module(place), name))
        yield "made", ""
        for outcome in attnbench.testing.run_invariants(spec, profile="quick"):
            yield outcome.status, outcome.invariant
    except (Exception, SystemExit) as error:
        yield "refused", f"{type(error).__name__}: {error}"[:300]


def main() -> None:
    """Print the lines of the classes of the packages that the command names."""
    parser = argparse.ArgumentParser(prog="python -m attnbench_peers.sweep", description=__doc__)
    parser.add_argument("packages", nargs="+")
    parser.add_argument(
        "--limit", type=float, default=10.0, help="most seconds of processor for a class"
    )
    parser.add_argument("--every", type=int, default=1, help="only each N-th class")
    given = parser.parse_args()
    for package in given.packages:
        for place, cls in [*classes_of(package)][:: given.every]:
            print(line_of(place, cls, given.limit), flush=True)


if __name__ == "__main__":
    main()
