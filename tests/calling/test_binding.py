from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from attnbench.calling.binding import output_and_more
from attnbench.errors import RefusalError

OUTPUT, WEIGHTS = torch.zeros(2), torch.ones(2)
Named = namedtuple("Named", ["weights", "output"])


@pytest.mark.parametrize(
    "result",
    [
        (OUTPUT, WEIGHTS),
        (OUTPUT, None, WEIGHTS),
        [OUTPUT, WEIGHTS],
        {"attn_weights": WEIGHTS, "attn_output": OUTPUT},
        Named(WEIGHTS, OUTPUT),
    ],
    ids=["tuple", "triple", "list", "dictionary", "named_tuple"],
)
def test_output_and_weights_are_taken_from_what_people_return(result: Any) -> None:
    output, more = output_and_more(result)
    assert output is OUTPUT
    assert more is WEIGHTS


def test_a_tensor_is_the_output() -> None:
    assert output_and_more(OUTPUT) == (OUTPUT, None)


def test_the_single_tensor_of_an_unknown_dictionary_is_the_output() -> None:
    assert output_and_more({"steps": 3, "pooled": OUTPUT}) == (OUTPUT, None)


@pytest.mark.parametrize(
    "result",
    [{"gates": WEIGHTS, "pooled": OUTPUT}, {"attn_weights": WEIGHTS}],
    ids=["two_unknown", "weights_alone"],
)
def test_no_part_of_an_unknown_dictionary_is_guessed_to_be_the_output(result: Any) -> None:
    with pytest.raises(RefusalError, match="nothing says which of them is the output"):
        output_and_more(result)
