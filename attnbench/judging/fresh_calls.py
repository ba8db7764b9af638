"""Calls whose answers are checked, and why one is wrong."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from attnbench.cases.case import Case
from attnbench.judging.confined import Confined
from attnbench.judging.decision import RefusedError
from attnbench.judging.entry import Answer
from attnbench.judging.right_answers import error_of_all, error_of_rows, furthest
from attnbench.judging.shared_bytes import copy_of
from attnbench.judging.streams import Stream
from attnbench.subject.tensors import Inputs


@dataclass
class Tally:
    """How many calls were made, right and compared whole; largest sizes of right ones."""

    calls: int = 0
    right: int = 0
    whole: int = 0
    largest: dict[str, int] = field(default_factory=lambda: dict.fromkeys("BHLSE", 0))

    def add(self, case: Case, *, whole: bool) -> None:
        """Count a right answer."""
        self.right += 1
        self.whole += whole
        sizes = *case.lead[-2:], case.q_len, case.kv_len, case.query_size
        for name, size in zip("BHLSE"[-len(sizes) :], sizes, strict=True):
            self.largest[name] = max(self.largest[name], size)


class Caller:
    """Calls a candidate and looks at its answers.

    Args:
        cell: the candidate's process.
        fresh: makes another process of the same candidate, to find out why an answer is wrong.
        names: the callee's own name of each keyword.
        chance: what is looked at, in which order.
    """

    def __init__(
        self,
        cell: Confined,
        fresh: Callable[[], Confined],
        names: Mapping[str, str],
        chance: random.Random,
    ) -> None:
        self.cell, self.fresh = cell, fresh
        self.names, self.chance = names, chance
        self.tally = Tally()
        self.timing = False

    def call(self, stream: Stream, *, whole: bool = False) -> Answer:
        """Call with what a stream has drawn; check the answer.

        Args:
            stream: of which :meth:`Stream.draw` was called.
            whole: compare all rows and not a few.

        Raises:
            RefusedError: the answer is wrong, and why.
        """
        answer = self._ask(self.cell, stream)
        self.tally.calls += 1
        if answer.output is None:
            return answer
        seed = self.chance.getrandbits(32)
        if self.error(stream, answer.output, seed, whole=whole) > 1.0:
            self._refuse(stream, answer.output, seed)
        self.tally.add(stream.case, whole=whole)
        return answer

    def _ask(self, cell: Confined, stream: Stream) -> Answer:
        keywords = {
            self.names[name]: copy_of(value) if isinstance(value, Tensor) else value
            for name, value in stream.keywords.items()  # which the candidate must not change
        }
        return cell.call(stream.tensors(), keywords)

    def error(self, stream: Stream, output: Tensor, seed: int, *, whole: bool = False) -> float:
        """The error of an output as a multiple of what is allowed; infinite for a wrong shape.

        Args:
            stream: what the call was given.
            output: of the call.
            seed: draws which rows are compared.
            whole: compare all rows, or as many as there is time for, and not one or a few.
        """
        inputs, output = stream.inputs(), stream.by_heads(output)
        wanted = (*inputs.query.shape[:-1], inputs.value.shape[-1])
        if tuple(output.shape) != wanted or output.dtype != inputs.query.dtype:
            return float("inf")
        error = _error(inputs, output, seed, whole=whole)
        if error <= 1.0:
            return error
        return _error(inputs, stream.averaged(output, inputs.value), seed, whole=whole)

    def _refuse(self, stream: Stream, wrong: Tensor, seed: int) -> None:
        """Refuse for a wrong answer; the same rows of other calls are compared to find out why."""
        at, shown = stream.in_words(), _shown(stream, wrong, seed)

        def right(output: Tensor | None) -> bool:
            return output is not None and all(
                self.error(stream, output, seed, whole=whole) <= 1.0 for whole in (False, True)
            )

        if right(self.cell.again()):
            raise RefusedError("arrived_late", f"at {at}")
        right_again = right(self._ask(self.cell, stream).output)
        other = self.fresh()
        try:
            right_alone = right(self._ask(other, stream).output)
        finally:
            other.close()
        name = "wrong"
        if right_again:
            name = "differs_when_timed" if self.timing else "unsteady"
        elif right_alone:
            name = "depends_on_history"
        answer = "the right answer" if right_alone else "a wrong answer too"
        seen = f"{shown}, in call {self.tally.calls} with {at}"
        raise RefusedError(name, f"{seen}; a new process gives {answer}")


def _error(inputs: Inputs, output: Tensor, seed: int, *, whole: bool) -> float:
    chance = random.Random(seed)  # noqa: S311  # to be repeated by seed
    if whole:
        return error_of_all(inputs, output, chance)
    q_len = inputs.query.shape[-2]
    chosen = [q_len - 1, *(chance.randrange(q_len) for _ in range(2))]
    rows = sorted({*chosen[chance.randrange(2) :]})
    return error_of_rows(inputs, output, chance.randrange(inputs.query.shape[:-2].numel()), rows)


def _shown(stream: Stream, output: Tensor, seed: int) -> str:
    """The worst element of a wrong output, or its shape and dtype if those are wrong."""
    inputs = stream.inputs()
    answer = stream.by_heads(output)
    (*lead, q_len, _), last = inputs.query.shape, inputs.value.shape[-1]
    if answer.shape != (*lead, q_len, last) or answer.dtype != inputs.query.dtype:
        got = f"{tuple(output.shape)} in {output.dtype}"
        shape = (lead[0], q_len, lead[1], last) if stream.turned else (*lead, q_len, last)
        return f"the output has shape {got}, but should have {shape} in {inputs.query.dtype}"
    (item, head, row, column), found, right = furthest(inputs, answer, random.Random(seed))  # noqa: S311 -- by the seed of the rows
    place = [item, row, head, column] if stream.turned else [item, head, row, column]
    return f"output{place} = {found:.6g}, but should be {right:.6g}"
