"""How good an oracle is: ``score(oracle)``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from attnbench_zoo.entries import KINDS, Entry, entries

Oracle = Callable[[Entry], bool]


@dataclass(frozen=True)
class Verdict:
    """What an oracle said of one entry.

    Args:
        entry: which.
        accepted: whether it takes the candidate for right.
        error: the exception with which it ended, which counts as a refusal; else ``None``.
        seconds: how long it took.
    """

    entry: Entry
    accepted: bool
    error: str | None
    seconds: float


@dataclass(frozen=True)
class Score:
    """What an oracle said of the zoo."""

    verdicts: tuple[Verdict, ...]

    @property
    def killed(self) -> list[str]:
        """The mutants that it refused."""
        return [v.entry.name for v in self.verdicts if not (v.entry.right or v.accepted)]

    @property
    def survivors(self) -> list[str]:
        """The mutants that it took for right."""
        return [v.entry.name for v in self.verdicts if v.accepted and not v.entry.right]

    @property
    def accused(self) -> list[str]:
        """The right ones that it refused."""
        return [v.entry.name for v in self.verdicts if v.entry.right and not v.accepted]

    @property
    def errors(self) -> dict[str, str]:
        """The exceptions in it, by name of the entry: the candidate's mistake, or its own."""
        return {v.entry.name: v.error for v in self.verdicts if v.error is not None}

    @property
    def seconds(self) -> float:
        """How long it took in all."""
        return sum(verdict.seconds for verdict in self.verdicts)

    def share(self, kind: str | None = None) -> float:
        """The share of the mutants, of a kind or of all, that it refused."""
        killed, mutants, *_ = self.counts(kind)
        return killed / mutants if mutants else 0.0

    def counts(self, kind: str | None = None) -> tuple[int, int, int, int]:
        """Mutants refused, mutants, right ones refused, and right ones; of a kind or of all."""
        some = [v for v in self.verdicts if kind in (None, v.entry.kind)]
        wrong, right = ([v for v in some if v.entry.right is side] for side in (False, True))
        refused = [sum(not v.accepted for v in side) for side in (wrong, right)]
        return refused[0], len(wrong), refused[1], len(right)

    def __str__(self) -> str:
        lines = ["kind        killed        accused"]
        for kind in (*KINDS, None):
            killed, mutants, accused, right = self.counts(kind)
            if mutants or right:
                share = f"{killed / mutants:6.1%}" if mutants else "     -"
                lines.append(
                    f"{kind or 'all':10} {killed:4} of {mutants:3} {share}  {accused} of {right}"
                )
        return "\n".join(lines)


def score(oracle: Oracle, among: Iterable[Entry] | None = None) -> Score:
    """Give an oracle every mutant and every right implementation, and count.

    Args:
        oracle: ``oracle(entry)`` is whether it takes the entry's candidate for right; an exception
            counts as a refusal, so that an oracle may assert. torch's global generator is seeded
            before each call.
        among: the entries that it gets; by default :func:`attnbench_zoo.entries`.

    Returns:
        ``score.share()`` is the share killed, ``score.accused`` names the right ones that it
        refused, ``print(score)`` shows both by kind.

    Raises:
        TypeError: the oracle returned no boolean.
    """
    return Score(tuple(_verdict(oracle, e) for e in (entries() if among is None else among)))


def _verdict(oracle: Oracle, entry: Entry) -> Verdict:
    error, accepted, begin = None, False, time.perf_counter()
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        try:
            accepted = oracle(entry)
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
    if not isinstance(accepted, bool):
        raise TypeError(
            f"the oracle returned {accepted!r} for {entry.name}, but should return True if it "
            "takes the candidate for right and False if not."
        )
    return Verdict(entry, accepted, error, time.perf_counter() - begin)
