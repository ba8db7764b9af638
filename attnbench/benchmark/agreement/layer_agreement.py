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
    got = output[-1:]
    hidden = inputs.hidden
    with torch.no_grad():
        if isinstance(inputs, StepInputs):
            hidden = torch.cat([inputs.past, hidden], 1)
        rows = got.shape[1]
        whole = hidden[-1:].cpu()
        near = copy.deepcopy(module).cpu()
        wide = next((name for name in _WIDE if name in subject.dtypes), subject.dtypes[0])
        dtype = getattr(torch, wide)
        expected, _ = subject.call(copy.deepcopy(near).to(dtype), whole.to(dtype))
        off = (got.cpu().double() - expected[:, -rows:].double()).abs()
        found = _agreement(off, floor_of(subject, expected, hidden.dtype))
        if not found.agrees:  # a fixed tolerance suffices to pass; to fail, measure the rounding
            found = _agreement(off, rounding_of(subject, near, whole)[:, -rows:])
    return found


def _agreement(off: Tensor, allowed: Tensor | float) -> Agreement:
    largest = float(off.max()) if off.numel() else 0.0
    error = largest if math.isfinite(largest) else math.inf
    return Agreement(error, ratio_of_errors(off, allowed), off.shape[1])
