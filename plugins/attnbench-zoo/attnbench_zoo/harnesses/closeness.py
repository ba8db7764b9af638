"""Rules that compare candidate and reference with one tolerance."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from attnbench import Case
from attnbench_zoo.entries import Entry
from attnbench_zoo.harnesses.base import cases, harness, sides

__all__ = [
    "assert_close_defaults",
    "five_random_inputs",
    "five_random_inputs_and_masks",
    "hundredth_over_dtypes",
]

MASKS = ("none", "causal", "boolean", "bias", "padding")
"""The forms that tests of attention usually pass."""


def _close(entry: Entry, some: Iterable[Case], tolerance: float) -> bool:
    return all(torch.allclose(*sides(entry, case), atol=tolerance, rtol=tolerance) for case in some)


@harness(
    "five random inputs",
    source="KernelBench (Ouyang et al. 2025, arXiv:2502.10517), also in training",
    rule="allclose with atol = rtol = 1e-2 for five seeds",
    passes="normal tensors in float32, no mask",
)
def five_random_inputs(entry: Entry) -> bool:
    """Five seeds, and nothing else."""
    return _close(entry, cases(entry, seeds=5), 1e-2)


@harness(
    "five random inputs, with masks",
    source="the same rule with each form of mask, which no source does: the calls are what differs",
    rule="allclose with atol = rtol = 1e-2 for five seeds",
    passes="the same, and causal, boolean, floating and padding masks",
)
def five_random_inputs_and_masks(entry: Entry) -> bool:
    """Five seeds of each mask."""
    return _close(entry, cases(entry, masks=MASKS, seeds=5), 1e-2)


@harness(
    "1e-2 over dtypes",
    source="Triton's tutorial on fused attention, and tests of kernels after it",
    rule="allclose with atol = rtol = 1e-2 in each dtype",
    passes="float32, float16 and bfloat16, causal or not",
)
def hundredth_over_dtypes(entry: Entry) -> bool:
    """One tolerance for three dtypes."""
    dtypes = ("float32", "float16", "bfloat16")
    return _close(entry, cases(entry, masks=("none", "causal"), dtypes=dtypes), 1e-2)


@harness(
    "torch.testing.assert_close",
    source="torch.testing, its defaults",
    rule="assert_close without arguments: rtol 1.3e-6 in float32, 1e-3 and 1.6e-2 in half types",
    passes="four dtypes, with no, causal, boolean, floating and padding masks",
)
def assert_close_defaults(entry: Entry) -> bool:
    """The tolerance that torch has for a dtype."""
    dtypes = ("float64", "float32", "float16", "bfloat16")
    for case in cases(entry, masks=MASKS, dtypes=dtypes):
        torch.testing.assert_close(*sides(entry, case))
    return True
