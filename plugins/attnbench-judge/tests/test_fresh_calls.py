"""What the judge says of a wrong answer to a call of its own."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest
import torch
from attnbench_judge.decision import Judgement, RefusedError
from attnbench_judge.fresh_calls import Caller, error_of
from attnbench_judge.inputs.secret import Secret
from attnbench_judge.inputs.streams import Stream
from attnbench_judge.process.entry import Answer
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench import Case

pytestmark = pytest.mark.slow


class Zeros:
    """A candidate whose answers are zeros of some shape."""

    def __init__(self, *shape: int) -> None:
        self.output = torch.zeros(*shape)

    def call(self, tensors: list[Tensor], keywords: dict[str, Any]) -> Answer:
        """The same answer for all."""
        return Answer(self.output, 0.0, 0.0)

    def again(self) -> Tensor:
        """The last answer."""
        return self.output

    def close(self) -> None:
        """Nothing to end."""


@pytest.mark.parametrize(
    ("style", "shape", "told"),
    [
        ("sdpa", (2, 3, 4, 5), r"output\[[01], [012], [0-3], [0-4]\] = 0, but should be -?\d"),
        ("flash", (2, 4, 3, 5), r"output\[[01], [0-3], [012], [0-4]\] = 0, but should be -?\d"),
        ("flash", (2, 3, 4, 5), r"the output has shape \(2, 3, 4, 5\) in torch.float32, but "),
    ],
)
def test_a_wrong_answer_is_told_with_its_place(
    style: str, shape: tuple[int, ...], told: str
) -> None:
    case = Case((2, 3), 4, 6, 8, 8, 5)
    stream = Stream(case, {}, style, Secret(0), name="keys far from 0")
    stream.draw()
    caller = Caller(Zeros(*shape), lambda: Zeros(*shape), {}, random.Random(0), Judgement("x"))  # type: ignore[return-value]  # no process
    with pytest.raises(RefusedError) as refused:
        caller.call(stream)
    text = str(refused.value)
    assert re.match(f"the output is wrong: {told}", text), text
    assert "with B=2, H=3, L=4, S=6, E=8, Ev=5, float32, keys far from 0" in text
    assert text.endswith("a new process gives a wrong answer too")


class Fused(Zeros):
    """A candidate whose answers are right but for the second; it counts the requests."""

    count = 0

    def call(self, tensors: list[Tensor], keywords: dict[str, Any]) -> Answer:
        """The right answer, or zeros."""
        self.count += 1
        output = scaled_dot_product_attention(*tensors)
        return Answer(output * (self.count != 2), 0.0, 0.0)


def test_no_request_follows_a_wrong_answer_but_those_that_find_out_why() -> None:
    cell = Fused(1)
    stream = Stream(Case((2, 3), 4, 6, 8, 8, 5), {}, "sdpa", Secret(0))
    caller = Caller(cell, lambda: cell, {}, random.Random(0), Judgement("x"))  # type: ignore[return-value]  # no process
    stream.draw()
    caller.call(stream, whole=True)
    stream.draw()
    with pytest.raises(RefusedError) as refused:
        caller.call(stream, whole=True)
    assert refused.value.name == "unsteady"
    assert cell.count == 4  # with the inputs of the wrong one, in its process and in a new one
    assert (caller.found.calls, caller.found.calls_right) == (2, 1)


def test_any_mean_of_the_values_is_right_where_a_mask_rounds_the_scores_away() -> None:
    mask = torch.full((4, 6), torch.finfo(torch.float32).min)
    mask[0] = 0.0
    case = Case((2, 3), 4, 6, 8, 8, 5)
    stream = Stream(case, {"attn_mask": mask}, "sdpa", Secret(0), values="far_values")
    stream.draw()
    query, key, value = stream.tensors()
    whole = scaled_dot_product_attention(query, key, value, mask)
    merged = whole.clone()  # of the first four keys and the last two
    merged[..., 1:, :] = (value[..., :4, :].mean(-2) + value[..., 4:, :].mean(-2))[..., None, :] / 2
    beyond, zeros, first = merged.clone(), merged.clone(), merged.clone()
    beyond[..., 2, 1] = value[..., 1].abs().amax(-1) * 1.01
    zeros[..., 3, :] = 0.0
    first[..., 0, :] = merged[..., 1, :]
    errors = [
        error_of(stream, one, 0, whole=True) > 1.0 for one in (whole, merged, beyond, zeros, first)
    ]
    assert errors == [False, False, True, True, True]
