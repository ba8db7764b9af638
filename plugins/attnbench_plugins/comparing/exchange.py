"""The exchange of slots: two sides take turns, each in a process of its own.

The process of a side runs :mod:`attnbench_plugins.comparing.server`. Every pair starts new ones:
where the code and heap of a process lie changes times by some percent. Both processes of a pair run
on one core, one waiting while the other takes its slot. This module does not import torch.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import psutil

from attnbench import UsageError
from attnbench.commands import end_text, kill_group, log_tail
from attnbench.timing import WALL_CLOCK, BenchCase, Block, Contract, Slot, take_blocks

CONTRACT = Contract(blocks=40, cap_s=5.0)
"""How a row is measured in a pair; it always gets one block."""

_SERVER = ("-m", "attnbench_plugins.comparing.server")
_START_S, _END_S = 180.0, 5.0


@dataclass(frozen=True)
class Side:
    """One side of a comparison.

    Args:
        name: displayed name: a revision, a file or a distribution.
        folder: folder in which addresses are looked up.
        roots: folders put first on the side's ``sys.path``.
        inside: folder that must contain the code of its subjects; ``None`` for any.
    """

    name: str
    folder: Path
    roots: tuple[Path, ...] = ()
    inside: Path | None = None


class Unmeasured(Exception):  # noqa: N818 -- a result for a row, not an error of attnbench
    """A row cannot be compared; the message says why."""


class AnotherAnswer(Unmeasured):
    """The two sides give different answers."""


class Lost(Unmeasured):
    """The process of a side has ended, or did not answer in time."""


class Server:
    """The process of one side, and the timer in it.

    Args:
        side: the side.
        threads: torch's threads within an operator.
        core, timeout_s: see :class:`Exchange`.
    """

    seconds = 0.0
    """Seconds of a call."""

    def __init__(self, side: Side, threads: int, core: int | None, timeout_s: float) -> None:
        self.side, self._timeout_s = side, timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile(prefix="attnbench-")  # noqa: SIM115 -- end()
        path = os.pathsep.join([*map(str, side.roots), os.environ.get("PYTHONPATH", "")])
        variables = {
            **os.environ,
            "PYTHONPATH": path.strip(os.pathsep),
            "PYTHONHASHSEED": "0",
            "PYTHONSAFEPATH": "1",
            "OMP_NUM_THREADS": str(threads),
            "MKL_NUM_THREADS": str(threads),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        self._pipe, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 -- this Python, and a module of ours
                [sys.executable, *_SERVER, *map(str, (theirs.fileno(), threads, core))],
                cwd=side.folder,
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,  # Ctrl-C then reaches only this process, which ends it
            )

    def wait(self) -> int:
        """Wait until the side's plugins are imported; returns the version of its contracts.

        Raises:
            UsageError: the import failed or took too long.
        """
        try:
            return int(self._answer(_START_S))
        except Unmeasured as error:
            raise UsageError(f"{error}, while torch and its plugins were imported.") from None

    def ask(self, action: str, *arguments: Any) -> Any:
        """Have the process do something, a method of its ``Served``, and return the result.

        Raises:
            Unmeasured: it raised, or (``Lost``) the process ended or did not answer in time.
        """
        with contextlib.suppress(OSError):  # it has ended, as its answer shows
            self._pipe.send((action, arguments))
        return self._answer(self._timeout_s)

    def addresses(self, text: str | None) -> list[str]:
        """The addresses of the subjects of one, or of all whose code is in the side's folder."""
        root = self.side.inside or self.side.folder
        addresses: list[str] = self.ask("addresses", text, str(root.resolve()))
        return addresses

    def slot(self) -> Slot:
        """Take one slot."""
        return Slot(*self.ask("slot"))

    def shake(self, seed: int) -> None:
        """Move the tensors that the call reads and writes to other places, and call it once."""
        self.ask("shake", seed)

    def _answer(self, timeout_s: float) -> Any:
        try:
            if not self._pipe.poll(timeout_s):
                raise Lost(
                    f"{self.side.name}: no answer within {timeout_s:g} s{log_tail(self._log)}"
                )
            fault, value = self._pipe.recv()
        except (EOFError, OSError):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            end = end_text(self._process.poll(), self._log)
            raise Lost(f"{self.side.name}: {end}") from None
        if fault:
            raise Unmeasured(f"{self.side.name}: {fault}")
        return value

    def end(self) -> None:
        """Kill the process and what it started."""
        kill_group(self._process.pid)
        self._process.wait()
        self._pipe.close()
        self._log.close()


@dataclass
class Exchange:
    """Two sides that are measured in pairs.

    Args:
        sides: A and B.
        core: CPU core on which both run; ``None`` leaves the choice to the system.
        contract: how a row is measured in a pair.
        timeout_s: most seconds that one answer of a side may take.
    """

    sides: tuple[Side, Side]
    core: int | None = None
    contract: Contract = CONTRACT
    timeout_s: float = 120.0
    taken: int = 0
    _servers: list[Server] = field(default_factory=list)

    def __enter__(self) -> Exchange:
        self.restart()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        while self._servers:
            self._servers.pop().end()

    def restart(self) -> None:
        """Start new processes for both sides."""
        self._end()
        try:
            for side in self.sides:
                self._servers.append(Server(side, self.contract.threads, self.core, self.timeout_s))
            versions = [server.wait() for server in self._servers]
            if len(set(versions)) > 1:
                raise UsageError(
                    "the two sides measure by other contracts, so their times cannot be compared: "
                    f"version {versions[0]} in {self.sides[0].name}, {versions[1]} in "
                    f"{self.sides[1].name}. Compare revisions with the same attnbench."
                )
        except BaseException:  # if an import fails, or on Ctrl-C, the other one must end too
            self._end()
            raise

    def common(self, text: str | None = None) -> tuple[list[str], list[str]]:
        """The addresses that both sides have, and notes on those that only one has.

        Args:
            text: an address; by default all subjects whose code is in the folder of a side.

        Raises:
            UsageError: B has no such subject.
        """
        a, b = self._servers
        try:
            own = b.addresses(text)
        except Unmeasured as error:
            raise UsageError(f"{text}: {error}") from None
        try:
            others = a.addresses(text)
        except Unmeasured as error:
            return [], [f"{text} is not compared: {error}"]
        only = ((a, [n for n in others if n not in own]), (b, [n for n in own if n not in others]))
        notes = [f"Only {one.side.name} has {', '.join(names)}." for one, names in only if names]
        return [name for name in own if name in others], notes

    def pair(
        self, rows: Sequence[tuple[BenchCase, tuple[str, str]]]
    ) -> Iterator[tuple[int, list[Block] | Unmeasured]]:
        """Take one pair: new processes of both sides measure all rows in random order.

        Args:
            rows: for each row, the case, and the address of the subject on either side.

        Yields:
            The index of a row, and its blocks or the reason why there are none.
        """
        if self.taken:
            self.restart()
        self.taken += 1
        chance = random.Random(self.taken)  # noqa: S311 -- orders, not secrets
        for number in chance.sample(range(len(rows)), len(rows)):
            try:
                yield number, self._blocks(*rows[number], chance)
            except Unmeasured as error:
                if isinstance(error, Lost):
                    self.restart()
                yield number, error

    def _blocks(
        self, case: BenchCase, addresses: tuple[str, str], chance: random.Random
    ) -> list[Block]:
        clocks, contract = set[str](), self.contract
        for server, address in zip(self._servers, addresses, strict=True):
            server.seconds, clock, origin = server.ask("prepare", address, case, contract)
            clocks.add(clock)
            root = server.side.inside
            if root is not None and not Path(origin).is_relative_to(root.resolve()):
                raise Unmeasured(
                    f"its code is in {origin}, not in {server.side.name}, so both sides would be "
                    "the same"
                )
        a, b = self._servers
        slowest = max(a.seconds, b.seconds)
        if 4 * slowest > self.timeout_s:
            raise Unmeasured(
                f"one call takes {slowest:.3g} s, so a block does not fit into {self.timeout_s:g} s"
            )
        for server in (a, b):
            server.ask("use_clock", clock if len(clocks) == 1 else WALL_CLOCK)
        pace = {"slot_s": contract.slot_s, "cap_s": contract.cap_s}
        blocks = list(take_blocks(a, b, contract.blocks, chance, **pace))
        answers = {server: server.ask("answer") for server in (a, b)}
        for side, peer in ((a, b), (b, a)):
            fault, answer = answers[side]
            if fault:
                raise AnotherAnswer(f"{side.side.name}: {fault}")
            if reason := peer.ask("difference", answer):
                raise AnotherAnswer(f"{peer.side.name} gives another answer: {reason}")
        return blocks


def quiet_core() -> int | None:
    """The least busy core; ``None`` if the system does not let a process choose its core."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    shares = psutil.cpu_percent(interval=0.3, percpu=True)
    return min(cores, key=lambda core: shares[core] if core < len(shares) else 100.0)
