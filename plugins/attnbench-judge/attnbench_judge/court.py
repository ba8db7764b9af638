"""``judge``: correctness and speed of code that nobody trusts, decided where it cannot reach."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from attnbench.errors import UsageError
from attnbench.testing import parse_address
from attnbench.timing import Selection
from attnbench_judge.decision import Judgement
from attnbench_judge.process.confined import Confined
from attnbench_judge.process.entry import Limits
from attnbench_judge.trial import Trial
from attnbench_judge.turns import HONEST

_LENGTHS = (256, 512)
_SETTLED_BYTES = 31 * 2**20
"""glibc raises its mmap threshold to at most 32 MiB, including its header of a block."""


def judge(
    target: str,
    *,
    style: str | None = None,
    conventions: Mapping[str, Any] | None = None,
    profile: str = "quick",
    set_name: str | None = None,
    lengths: Iterable[int] = (),
    invariants: Iterable[str] | None = None,
    seed: int | None = None,
    limits: Limits | None = None,
) -> Judgement:
    """Judge a candidate in a process of its own, whatever it does.

    Args:
        target: ``path/to/file.py``, ``path/to/file.py:NAME`` or ``package.module:NAME`` of an
            attention function, perhaps followed by `` as STYLE with KEY=VALUE``.
        style: its style of call: ``"sdpa"`` or ``"flash"``.
        conventions: which it follows, as of a ``MechanismSpec``; ``hidden_slots`` is ``"finite"``
            unless given.
        profile: number of cases an invariant: ``quick``, ``default`` or ``thorough``.
        set_name: set of cases to time, as of ``bench``, if no lengths are given.
        lengths: lengths S to time at, L = S; 256 and 512 if neither is given.
        invariants: names of the invariants to run; by default all.
        seed: draws everything; ``None`` for one that nobody knows.
        limits: what the candidate may use.

    Returns:
        A judgement; what the candidate does ends in it and raises nothing.

    Raises:
        AttnbenchError: the address, the style, a convention or a name is wrong.
    """
    with Court(limits or Limits(), set_name=set_name, lengths=tuple(lengths)) as court:
        return court.judge(
            target,
            style=style,
            conventions=conventions,
            profile=profile,
            invariants=invariants,
            seed=seed,
        )


class Court:
    """Judges one candidate after another, against one honest process.

    Args:
        limits: what a candidate may use.
        set_name: set of cases to time.
        lengths: lengths to time at instead.
        budget_s: seconds of timing for each case.
    """

    def __init__(
        self,
        limits: Limits,
        *,
        set_name: str | None = None,
        lengths: tuple[int, ...] = (),
        budget_s: float = 1.0,
    ) -> None:
        self.limits, self.budget_s = limits, budget_s
        lengths = lengths if lengths or set_name else _LENGTHS
        found = Selection(None if lengths else set_name, lengths=lengths).cases()
        self.cases = [
            (one.case, one.kv_heads)
            for one in found
            if one.direction == "forward"
            and one.case.query_size == one.case.key_size
            and len(one.case.lead) <= 2
        ]
        if not self.cases:
            raise UsageError(f"the set {set_name} has no forward case of q·k attention to time.")
        self._honest: Confined | None = None

    def __enter__(self) -> Court:
        return self

    def __exit__(self, *_: object) -> None:
        if self._honest is not None:
            self._honest.close()

    def honest(self) -> Confined:
        """A process with what candidates are measured against."""
        if self._honest is None or self._honest.refused is not None:
            self._honest = Confined(HONEST, Limits(total_s=math.inf))
        return self._honest

    def judge(self, target: str, **options: Any) -> Judgement:
        """Judge one candidate; see :func:`judge` for it and for the options that are its own."""
        place, style, conventions = _place(target)
        options["style"] = options.get("style") or style
        options["conventions"] = {**conventions, **(options.get("conventions") or {})}
        trial = Trial(self, target, place, **options)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        torch.empty(_SETTLED_BYTES, dtype=torch.uint8)  # or each large temporary is mapped anew
        try:
            return trial.run()
        finally:
            torch.set_num_threads(threads)


def _place(target: str) -> tuple[tuple[str, str], str | None, Mapping[str, Any]]:
    """File or module and attribute of an address, its style and its conventions."""
    if target.endswith(".py"):
        source, name, style, conventions = target, "", None, {}
    else:
        address = parse_address(target)
        if address.source is None:
            raise UsageError(
                f"{target} is not the address of a function: give path/to/file.py:NAME or "
                "package.module:NAME. What is installed is checked by 'attnbench check'."
            )
        source, name = address.source, address.name
        style, conventions = address.style, dict(address.conventions)
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise UsageError(f"there is no file {source}.")
        shadowed = sys.modules.get(path.stem) if path.stem in sys.stdlib_module_names else None
        if getattr(shadowed, "__file__", None) == str(path):
            raise UsageError(
                f"{source} was imported in place of Python's own {path.stem}, so that it runs "
                "in the judge: call from another folder, or with python -P."
            )
        source = str(path)
    return (source, name), style, conventions
