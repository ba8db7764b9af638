"""Calls whose answers are checked, and why one is wrong."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping

from torch import Tensor

from attnbench_judge.decision import Judgement, RefusedError
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.confined import Confined
from attnbench_judge.process.entry import Answer
from attnbench_judge.right_answers import RightOutput


def error_of(stream: Stream, output: Tensor, seed: int, *, whole: bool) -> float:
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
        return math.inf
    chance = random.Random(seed)  # noqa: S311  # to be repeated by seed
    right = RightOutput(inputs, chance, few=not whole)
    error = right.error(output)
    return error if error <= 1.0 else right.error(stream.averaged(output, inputs.value))


class Caller:
    """Calls a candidate and looks at its answers.

    An answer is compared before the next request, so that nothing follows a wrong one.

    Args:
        cell: the candidate's process.
        fresh: makes another process of the same candidate, to find out why an answer is wrong.
        names: the callee's own name of each keyword.
        chance: what is looked at, in which order.
        found: where calls are counted.
    """

    def __init__(
        self,
        cell: Confined,
        fresh: Callable[[], Confined],
        names: Mapping[str, str],
        chance: random.Random,
        found: Judgement,
    ) -> None:
        self.cell, self.fresh = cell, fresh
        self.names, self.chance, self.found = names, chance, found
        self.timing = False

    def call(self, stream: Stream, *, whole: bool = False) -> Answer:
        """Call with what a stream has drawn, and compare the answer.

        Args:
            stream: of which :meth:`Stream.draw` was called.
            whole: compare all rows and not a few.

        Raises:
            RefusedError: the answer is wrong, and why.
        """
        seed = self.chance.getrandbits(32)
        answer = self._ask(self.cell, stream)
        self.found.calls += 1
        if answer.output is not None:
            if error_of(stream, answer.output, seed, whole=whole) > 1.0:
                self._refuse(stream, answer.output, seed)
            self.found.calls_right += 1
            self.found.calls_whole += whole
        return answer

    def _ask(self, cell: Confined, stream: Stream) -> Answer:
        keywords = {self.names[name]: value for name, value in stream.keywords.items()}
        return cell.call(stream.tensors(), keywords)

    def _refuse(self, stream: Stream, wrong: Tensor, seed: int) -> None:
        """Refuse for a wrong answer; the same rows of other calls are compared to find out why."""
        shown = _shown(stream, wrong, seed)

        def right(output: Tensor | None) -> bool:
            return output is not None and all(
                error_of(stream, output, seed, whole=whole) <= 1.0 for whole in (False, True)
            )

        if right(self.cell.again()):
            raise RefusedError("arrived_late", f"at {stream.in_words()}")
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
        seen = f"{shown}, in call {self.found.calls} with {stream.in_words()}"
        raise RefusedError(name, f"{seen}; a new process gives {answer}")


def _shown(stream: Stream, output: Tensor, seed: int) -> str:
    """The worst element of a wrong output, or its shape and dtype if those are wrong."""
    inputs, answer = stream.inputs(), stream.by_heads(output)
    (*lead, q_len, _), last = inputs.query.shape, inputs.value.shape[-1]
    if answer.shape != (*lead, q_len, last) or answer.dtype != inputs.query.dtype:
        got = f"{tuple(output.shape)} in {output.dtype}"
        shape = (lead[0], q_len, lead[1], last) if stream.turned else (*lead, q_len, last)
        return f"the output has shape {got}, but should have {shape} in {inputs.query.dtype}"
    chance = random.Random(seed)  # noqa: S311  # draws the rows of the comparison
    (item, head, row, column), found, right = RightOutput(inputs, chance).furthest(answer)
    place = [item, row, head, column] if stream.turned else [item, head, row, column]
    return f"output{place} = {found:.6g}, but should be {right:.6g}"
