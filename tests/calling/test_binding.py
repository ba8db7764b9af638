from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from attnbench_plugins.adapters.binding import output_and_more

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
)
def test_output_and_weights_are_taken_from_what_people_return(result: Any) -> None:
    output, more = output_and_more(result)
    assert output is OUTPUT
    assert more is WEIGHTS


@pytest.mark.parametrize("result", [OUTPUT, {"steps": 3, "pooled": OUTPUT}])
def test_a_single_tensor_is_the_output(result: Any) -> None:
    assert output_and_more(result) == (OUTPUT, None)


@pytest.mark.parametrize("result", [{"gates": WEIGHTS, "pooled": OUTPUT}, {"weights": WEIGHTS}])
def test_no_part_of_an_unknown_dictionary_is_guessed_to_be_the_output(result: Any) -> None:
    with pytest.raises(RefusalError, match="nothing says which of them is the output"):
        output_and_more(result)
