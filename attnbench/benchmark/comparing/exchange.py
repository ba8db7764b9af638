"""The exchange of slots: two sides take turns, each in its own process.

The server of a side imports torch and the side's plugins, and forks a child that takes the slots; a
child that dies or hangs does not affect its server. Every pair starts new servers: where the code
and heap of a server lie changes times by some percent, and its children inherit the place. Both
children of a pair run on one core, one waiting while the other takes its slot. The process that
uses this module does not import torch.
"""

from __future__ import annotations

import contextlib
import os
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from attnbench.benchmark.comparing.sides import (
    AnotherAnswer,
    Ended,
    Late,
    Server,
    Side,
    Unmeasured,
)
from attnbench.benchmark.timing.blocks import Block, Slot, take_blocks
from attnbench.errors import UsageError

SLOT_S = 0.004
BLOCKS = 40
"""Blocks of each row in a pair."""

ROW_S = 5.0
"""Seconds after which a row gets no further block in a pair; it always gets one."""


@dataclass
class Exchange:
    """Two sides that are measured in pairs.

    Args:
        sides: A and B.
        core: CPU core on which both run; ``None`` leaves the choice to the system.
        threads: torch's threads within an operator.
        slot_s: duration of a slot, in seconds.
        blocks: most blocks of a row in a pair.
        timeout_s: most seconds that one answer of a side may take.
        seed: seed of the random orders.
    """

    sides: tuple[Side, Side]
    core: int | None = None
    threads: int = 1
    slot_s: float = SLOT_S
    blocks: int = BLOCKS
    timeout_s: float = 120.0
    seed: int = 0
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
        """Start new servers for both sides."""
        self._end()
        try:
            for side in self.sides:
                self._servers.append(Server(side, self.threads))
            versions = [server.wait() for server in self._servers]
            if len(set(versions)) > 1:
                raise UsageError(
                    "the two sides measure by other contracts, so their times cannot be compared: "
                    f"version {versions[0]} in {self.sides[0].name}, {versions[1]} in "
                    f"{self.sides[1].name}. Compare revisions with the same attnbench."
                )
        except BaseException:  # if an import fails, or on Ctrl-C, the other server must end too
            self._end()
            raise

    def names(self) -> list[list[str]]:
        """For each side, the names of the subjects whose code is in its folder."""
        names = []
        for server in self._servers:
            root = server.side.inside or server.side.folder
            order = {"do": "names", "root": str(root.resolve())}
            names.append(list(server.ask(order, self.timeout_s)["names"]))
        return names

    def expanded(self, text: str) -> tuple[list[str], str]:
        """An address for each subject of an address that both sides have, or why A has none.

        Raises:
            UsageError: B has no such subject.
        """
        order = {"do": "expand", "address": text}
        names, fault = [], ""
        for server in reversed(self._servers):
            try:
                names.append(list(server.ask(order, self.timeout_s)["names"]))
            except Unmeasured as error:
                if not names:
                    raise UsageError(f"{text}: {error}") from None
                return [], f"{text} is not compared: {error}"
        shared_names = [name for name in names[0] if name in names[1]]
        if not shared_names:
            fault = f"{text} is not compared: the two sides have no subject name in common there."
        return shared_names, fault

    def pair(
        self, rows: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]], *, check: bool = False
    ) -> Iterator[tuple[int, list[Block] | Unmeasured]]:
        """Take one pair: new processes of both sides measure all rows in random order.

        Args:
            rows: for each row, the order that each side prepares.
            check: whether to compare the outputs of both sides first.

        Yields:
            The index of a row, and its blocks or the reason why there are none.
        """
        if self.taken:
            self.restart()
        self.taken += 1
        chance = random.Random(f"{self.seed} {self.taken}")  # noqa: S311 -- orders, not secrets
        order = chance.sample(range(len(rows)), len(rows))
        is_forked = False
        try:
            for number in order:
                if not is_forked:
                    for server in self._servers:
                        server.ask({"do": "pair", "core": self.core}, self.timeout_s)
                    is_forked = True
                try:
                    yield number, self._blocks(rows[number], chance, check=check)
                except (Ended, Late) as error:
                    self.restart()
                    is_forked = False
                    yield number, error
                except Unmeasured as error:
                    yield number, error
        finally:
            for server in self._servers if is_forked else ():
                with contextlib.suppress(Unmeasured):  # the answer is how the child ended
                    server.ask({"do": "end"}, self.timeout_s)

    def _blocks(
        self,
        row: tuple[Mapping[str, Any], Mapping[str, Any]],
        chance: random.Random,
        *,
        check: bool,
    ) -> list[Block]:
        order = {"do": "prepare", "slot_s": self.slot_s, "cap_s": ROW_S}
        answers = []
        for server, part in zip(self._servers, row, strict=True):
            answers.append(server.ask({**order, "row": part}, self.timeout_s))
            root = server.side.inside
            if root is not None and not Path(answers[-1]["origin"]).is_relative_to(root.resolve()):
                raise Unmeasured(
                    f"its code is in {answers[-1]['origin']}, not in {server.side.name}, so both "
                    "sides would be the same"
                )
        if check:
            self._check()
        clocks = {answer["clock"] for answer in answers}
        clock = clocks.pop() if len(clocks) == 1 else "wall clock"
        for server in self._servers:
            server.ask({"do": "clock", "clock": clock}, self.timeout_s)
        slowest = max(answer["each_s"] for answer in answers)
        if 4 * slowest > self.timeout_s:
            raise Unmeasured(
                f"one call takes {slowest:.3g} s, so a block does not fit into {self.timeout_s:g} s"
            )
        a, b = (
            _RemoteTimer(server, answer["each_s"], self.timeout_s)
            for server, answer in zip(self._servers, answers, strict=True)
        )
        cap_s = max(ROW_S, 4 * slowest)
        blocks = list(take_blocks(a, b, self.blocks, chance, slot_s=self.slot_s, cap_s=cap_s))
        self._check(timed=True)
        return blocks

    def _check(self, *, timed: bool = False) -> None:
        """Compare the outputs of both sides.

        Args:
            timed: whether to compare outputs of timed calls, those of A with B and those of B with
                A; else those that both give on the inputs of the case.

        Raises:
            Unmeasured: the outputs differ, or are no plain tensors that a call has completed.
        """
        a, b = self._servers
        for side, peer in ((a, b), (b, a)) if timed else ((a, b),):
            with tempfile.TemporaryDirectory(prefix="attnbench-") as folder:
                path = str(Path(folder) / "answer.pt")
                order = {"do": "answer", "path": path, "timed": timed}
                fault = side.ask(order, self.timeout_s)["fault"]
                if fault:
                    raise AnotherAnswer(f"{side.side.name}: {fault}")
                reason = peer.ask({"do": "same", "path": path}, self.timeout_s)["reason"]
            if reason and timed:
                raise AnotherAnswer(
                    f"{side.side.name} gave another answer while it was timed than "
                    f"{peer.side.name} to the same inputs: {reason}"
                )
            if reason:
                raise AnotherAnswer(f"{peer.side.name} gives another answer: {reason}")


@dataclass(frozen=True)
class _RemoteTimer:
    """The timer of a side's process."""

    server: Server
    seconds: float
    timeout_s: float

    def slot(self) -> Slot:
        answer = self.server.ask({"do": "slot"}, self.timeout_s)
        return Slot(answer["s"], answer["d"])

    def shake(self, seed: int) -> None:
        self.server.ask({"do": "shake", "seed": seed}, self.timeout_s)


def quiet_core() -> int | None:
    """The least busy core; ``None`` if the system does not let a process choose its core."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) == 1:
        return cores[0]
    shares = psutil.cpu_percent(interval=0.3, percpu=True)
    return min(cores, key=lambda core: shares[core] if core < len(shares) else 100.0)
