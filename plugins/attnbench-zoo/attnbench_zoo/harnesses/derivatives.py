"""A rule that compares a candidate's derivatives with finite differences of itself."""

from __future__ import annotations

import torch

from attnbench_zoo.entries import Entry
from attnbench_zoo.harnesses.base import PLAIN, cases, harness

__all__ = ["SMALL", "gradcheck_alone"]

SMALL = PLAIN.replace(lead=(2,), q_len=3, kv_len=6, query_size=4, key_size=4, value_size=4)
"""Finite differences take two calls for each element."""


@harness(
    "gradcheck",
    source="torch.autograd.gradcheck, its defaults",
    rule="derivatives equal finite differences in float64; the output is compared with nothing",
    passes="float64, no, causal and floating masks",
)
def gradcheck_alone(entry: Entry) -> bool:
    """The candidate alone, against itself."""
    for case in cases(entry, masks=("none", "causal", "bias"), dtypes=("float64",), like=SMALL):
        built = entry.candidate(case)
        tensors = [tensor.detach().clone().requires_grad_() for tensor in built.tensors]
        torch.autograd.gradcheck(built.call, tensors, fast_mode=False)
    return True
