"""The inputs of a subject."""

import torch

from attnbench.subject.tensors import Inputs


def test_inputs_are_equal_to_themselves_alone() -> None:
    # from Python 3.13 on, dataclasses compare field by field, and a tensor has no truth
    tensor = torch.zeros(2, 3)
    assert Inputs(tensor, tensor, tensor) != Inputs(tensor, tensor, tensor)
