"""A confined process as the judge sees it: requests, answers, its clocks, and its end.

The process stands still except between a request and its answer: the judge stops it (SIGSTOP) as
soon as the answer arrives and waits until all its threads have stopped; only then it reads the
clock and the bytes. So nothing computes before a request or after an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import secrets
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench_judge.decision import RefusedError, plain_text
from attnbench_judge.process.entry import Answer, Limits, enter
from attnbench_judge.process.old_outputs import OldOutputs
from attnbench_judge.process.process_account import (
    Clocks,
    alive,
    ending,
    patience,
    resident_bytes,
    stopped,
    tree,
)
from attnbench_judge.process.shared_bytes import SharedBytes, same_bytes

_MESSAGE = 1 << 18
_LOOK_S = 0.25
_STOP_S = 5.0
_STILL_S = 5e-4
"""Most seconds that it may compute between an answer and a request, on its way to a stop."""


class Confined:
    """A process that has loaded callees nobody trusts; each is told of in ``callees``.

    Args:
        callees: file or module, and attribute or ``""``, of each callee.
        limits: what it may use.
        paths: folders to import from.
        chance: draws which outputs are asked for again.

    Raises:
        RefusedError: it could not be started, or a callee not be loaded.
    """

    def __init__(
        self,
        callees: Sequence[tuple[str, str]],
        limits: Limits,
        paths: Sequence[str] = (),
        chance: random.Random | None = None,
    ) -> None:
        self.limits, self.pid = limits, 0
        self._stack = contextlib.ExitStack()
        scratch = tempfile.mkdtemp(prefix="attnbench-judge-")
        self._stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        self.shared = SharedBytes(limits.shared_mib << 20)
        self._stack.callback(self.shared.close)
        self.refused: RefusedError | None = None
        self._took_s = 0.0
        self._rested: float | None = None
        self._old = OldOutputs(chance or random.SystemRandom())
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel.settimeout(_LOOK_S)
        self._stack.callback(self._channel.close)
        try:
            with theirs:
                entered = enter(limits, scratch, self.shared, theirs.fileno())
            self.pid, self.held, self.missing = entered
            self._clocks = Clocks(self.pid)
            self._stack.callback(self._clocks.close)
            self.callees = self._loaded({"callees": list(callees), "paths": list(paths)})
        except BaseException:
            self.close()
            raise

    def _loaded(self, places: Mapping[str, Any]) -> list[dict[str, Any]]:
        """What each of the callees is called and which arguments it takes, once it is loaded."""
        self._send({"size": self.shared.size, **places})
        answer = self._received(self.limits.load_s)
        if "loaded" not in answer:  # its process may have ended since
            raise RefusedError("not_loaded", str(answer.get("unloaded", answer)))
        self._freeze()
        loaded = answer["loaded"]
        if not (isinstance(loaded, list) and loaded and all(isinstance(o, dict) for o in loaded)):
            raise RefusedError("broke_protocol", "a message that tells of no callee")
        return loaded

    def call(
        self,
        tensors: Sequence[Tensor],
        keywords: Mapping[str, Any],
        *,
        callee: int = 0,
        back: bool = False,
    ) -> Answer:
        """Write tensors, call, and copy the output.

        Args:
            tensors: arguments by position.
            keywords: others; those that are tensors are written too.
            callee: which of the callees.
            back: change the given tensors as the candidate changed its inputs.

        Raises:
            RefusedError: it broke a rule; the process is of no more use.
        """
        named = [name for name, value in keywords.items() if isinstance(value, Tensor)]
        placed = self.shared.laid_out([*tensors, *(keywords[name] for name in named)])
        for _, own, there in placed:
            there.copy_(own)
        plain = {n: v for n, v in keywords.items() if n not in named}
        refs = {name: {"tensor": len(tensors) + i} for i, name in enumerate(named)}
        told = [row[0] for row in placed]
        request = {"callee": callee, "tensors": told, "count": len(tensors), "hold": self._old.held}
        answer = self._asked({**request, "keywords": {**plain, **refs}})
        for _, own, there in placed if back else ():
            if not torch.equal(own, there):
                own.copy_(there)
        return answer

    def _asked(self, request: dict[str, Any]) -> Answer:
        """The answer to a call; some older ones are read again."""
        answer = self._answered(request)
        if answer.output is None:
            return answer
        self._old.add(answer.output)
        for later, copy in self._old.due():
            found = self._answered({"again": later}).output
            if found is None or not same_bytes(found, copy):
                self.refused = RefusedError("changed_later", f"{later} outputs after it")
                raise self.refused
        return answer

    def again(self, wait_s: float = 0.05) -> Tensor | None:
        """Let the process run for some seconds of its own, and read its last output again."""
        if self.refused is None:
            spent = patience(self.pid, self._clocks)
            self._rested = None
            os.kill(self.pid, signal.SIGCONT)
            while next(spent) < wait_s:
                time.sleep(wait_s / 10)
        return self._answered({"again": 0}).output

    def _answered(self, request: dict[str, Any]) -> Answer:
        if self.refused is not None:
            raise self.refused
        try:
            return self._exchange(request)
        except RefusedError as refused:
            self.refused = refused
            raise

    def _exchange(self, request: dict[str, Any]) -> Answer:
        number = secrets.token_hex(8)  # a message that came before is no answer to it
        self._send({**request, "id": number, "out": self.shared.place, "room": self.shared.room})
        before = self._clocks.read()
        if self._rested is not None and before[0] > self._rested + _STILL_S:
            raise RefusedError("went_on", f"for {before[0] - self._rested:.1e} s")
        os.kill(self.pid, signal.SIGCONT)
        answer = self._received(self.limits.call_s)
        self._freeze()
        self._check_alone()  # before the clock is read: what it has started computes on
        after = self._clocks.read()
        self._rested = after[0] if self._clocks.counts else None
        seconds, passed = (b - a for a, b in zip(before, after, strict=True))
        idle_s = max(0.0, passed - seconds)
        self._took_s += seconds + idle_s
        if self._took_s > self.limits.total_s:
            raise RefusedError("took_too_long", f"more than {self.limits.total_s:g} s")
        if answer.get("id") != number:
            raise RefusedError("broke_protocol", "an answer has the number of another request")
        if "fault" in answer:
            fault = str(answer["fault"])
            known = fault in ("not_plain", "alias_of_input", "alias_of_output")
            raise RefusedError(fault if known else "broke_protocol", str(answer.get("text")))
        if answer.get("raised") == "MemoryError":
            raise RefusedError("too_much_memory", f"more than {self.limits.memory_gib:g} GiB")
        if "raised" in answer:
            raised = plain_text(answer["raised"]), plain_text(answer.get("text"))
            return Answer(None, seconds, idle_s, raised)
        try:
            view = self.shared.claimed(answer.get("dtype"), answer.get("shape"))
        except ValueError as error:
            raise RefusedError("broke_protocol", str(error)) from None
        return Answer(view.clone(), seconds, idle_s)

    def _send(self, message: Mapping[str, Any]) -> None:
        try:
            self._channel.send(json.dumps(message).encode())
        except TimeoutError:
            raise RefusedError("broke_protocol", "it leaves requests unread") from None
        except OSError:
            raise RefusedError("ended", self._end()) from None

    def _received(self, limit_s: float) -> dict[str, Any]:
        spent = patience(self.pid, self._clocks)
        message: bytes | None = None
        while message is None:
            try:
                message = self._channel.recvmsg(_MESSAGE)[0]
            except TimeoutError:
                self._check_resources(next(spent), limit_s)
            except OSError:
                message = b""
        if not message:
            raise RefusedError("ended", self._end())
        answer = None
        with contextlib.suppress(ValueError, RecursionError):
            answer = json.loads(message)
        if not isinstance(answer, dict):
            raise RefusedError("broke_protocol", f"{message[:80]!r} is not an answer")
        return answer

    def _check_resources(self, spent_s: float, limit_s: float) -> None:
        if spent_s > limit_s:
            raise RefusedError("hung", f"after {limit_s:g} s")
        held = sum(map(resident_bytes, tree(self.pid)))
        if held > self.limits.memory_gib * 2**30:
            raise RefusedError("too_much_memory", f"{held / 2**30:.1f} GiB")

    def _freeze(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGSTOP)
        pid, status = stopped(self.pid, self._clocks, _STOP_S)
        if pid and not os.WIFSTOPPED(status):
            self.pid = 0
            raise RefusedError("ended", ending(status))
        if not pid:
            raise RefusedError("hung", f"it did not stop within {_STOP_S:g} s after its answer")

    def _check_alone(self) -> None:
        if others := list(filter(alive, tree(self.pid)[1:])):
            raise RefusedError("left_processes", f"{len(others)} besides its own")

    def _end(self) -> str:
        """How it ended, after its channel was closed."""
        deadline = time.monotonic() + 1.0
        while time.monotonic() < deadline:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = 0
                return ending(status)
            time.sleep(0.01)
        return "it closed its channel"

    def close(self) -> None:
        """Kill everything that it started, and remove its folder."""
        if self.pid:
            for pid in tree(self.pid)[::-1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            self.pid = 0
        self._stack.close()
