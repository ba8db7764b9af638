"""Agreement of a layer: its outputs compared with one call in float64 without a cache.

Only the last item of a batch is compared; its reference runs alone, since the other items must not
affect it. A decoding call is compared in the item's last row, any other call in all rows.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from attnbench.benchmark.agreement.attention_agreement import Agreement, ratio_of_errors
from attnbench.benchmark.decoding import StepInputs
from attnbench.invariants.toolkit.layer_rounding import floor_of, rounding_of
from attnbench.subject.layer import LayerSubject
from attnbench.subject.tensors import LayerInputs

_WIDE = ("float64", "float32")


def layer_agreement(
    subject: LayerSubject, module: nn.Module, inputs: LayerInputs, output: Tensor
) -> Agreement:
    """Compare the output of a call with that of the whole sequence in the widest dtype."""
    item_output = output[-1:]
    hidden = inputs.hidden
    with torch.no_grad():
        if isinstance(inputs, StepInputs):
            hidden = torch.cat([inputs.past, hidden], 1)
        rows = item_output.shape[1]
        sequence = hidden[-1:].cpu()
        module_copy = copy.deepcopy(module).cpu()
        dtype_name = next((name for name in _WIDE if name in subject.dtypes), subject.dtypes[0])
        dtype = getattr(torch, dtype_name)
        expected, _ = subject.call(copy.deepcopy(module_copy).to(dtype), sequence.to(dtype))
        errors = (item_output.cpu().double() - expected[:, -rows:].double()).abs()
        result = _agreement(errors, floor_of(subject, expected, hidden.dtype))
        if not result.agrees:  # a fixed tolerance suffices to pass; to fail, measure the rounding
            result = _agreement(errors, rounding_of(subject, module_copy, sequence)[:, -rows:])
    return result


def _agreement(errors: Tensor, allowed: Tensor | float) -> Agreement:
    largest = float(errors.max()) if errors.numel() else 0.0
    error = largest if math.isfinite(largest) else math.inf
    return Agreement(error, ratio_of_errors(errors, allowed), errors.shape[1])
