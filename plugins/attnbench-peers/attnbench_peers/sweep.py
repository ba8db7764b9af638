"""``python -m attnbench_peers.sweep PACKAGE...``: each class called ``*Attention``, in one line.

Each class is checked by itself, in a child process and for a limited time of the processor. Between
tabs a line has the class, ``checked``, ``refused`` or ``fails``, the number of properties that
hold, and what fails or why it was refused. Of classes with the same source one is tried.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import inspect
import math
import multiprocessing
import os
import pkgutil
import re
import resource
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

from torch import nn

__all__ = ["classes_of", "line_of", "main"]


_LIKELY = re.compile(r"attention|model|layers|transformer|attn|activation")


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
                if not name.endswith("Attention") or not inspect.isclass(value):
                    continue
                if value.__module__ != place or not issubclass(value, nn.Module):
                    continue
                if inspect.isabstract(value) or value.forward is nn.Module.forward:
                    continue
                text = inspect.getsource(value).split("\n", 1)[1]
                prefix = name.removesuffix("Attention")
                plain = re.sub(r"\s+", " ", text.replace(prefix, "") if prefix else text)
                if plain not in seen:
                    seen.add(plain)
                    yield place, value


def line_of(place: str, cls: type[nn.Module], limit_s: float) -> str:
    """The line of a class."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_tell, args=(cls, theirs, limit_s))
    child.start()
    theirs.close()
    end, held, failed, refused = time.monotonic() + 6 * limit_s, 0, [], ""
    status = "refused"
    while ours.poll(max(0.0, end - time.monotonic())):
        try:
            kind, text = ours.recv()
        except EOFError:
            break
        if kind == "refused":
            refused = text
            break
        status = "checked"
        held += kind == "passed"
        failed += [text] if kind in ("failed", "crashed") else []
    else:
        refused = refused or ("" if status == "checked" else f"no answer in {limit_s:.0f} s")
    child.kill()
    child.join()
    status = "fails" if failed else status
    detail = " ".join(failed) or " ".join(refused.split())
    return f"{place}:{cls.__name__}\t{status}\t{held}\t{detail}"


def _tell(cls: type[nn.Module], pipe: Connection, limit_s: float) -> None:
    """Send what is found out about a class, as it comes, for so many seconds of the processor."""
    import attnbench.adapters
    import attnbench.testing

    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + math.ceil(limit_s), -1))
    with open(os.devnull, "w") as hushed, contextlib.redirect_stdout(hushed):
        try:
            spec: Any = attnbench.adapters.spec_of(cls)
            pipe.send(("made", ""))
            for outcome in attnbench.testing.run_invariants(spec, profile="quick"):
                pipe.send((outcome.status, outcome.invariant))
        except BaseException as error:
            pipe.send(("refused", f"{type(error).__name__}: {error}"[:300]))
    pipe.close()


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
