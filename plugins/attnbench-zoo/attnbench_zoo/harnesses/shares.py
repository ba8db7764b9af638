"""A rule that lets a share of the elements differ."""

from __future__ import annotations

import torch

from attnbench_zoo.entries import Entry
from attnbench_zoo.harnesses.base import cases, harness, sides

__all__ = ["share_of_matching_elements"]

_TOLERANCES = {
    "float32": (1e-6, 1e-4),
    "float16": (5e-3, 5e-3),
    "bfloat16": (1e-2, 1e-2),
}
"""atol and rtol, by dtype."""

_SHARE = 0.8


@harness(
    "eager against fused, 80 % of elements",
    source="transformers, test_modeling_common.py, test_eager_matches_sdpa_inference",
    rule="4 of 5 elements close, with atol 1e-6, 5e-3 and 1e-2 in float32, float16 and bfloat16",
    passes="three dtypes, padding at either side or no mask",
)
def share_of_matching_elements(entry: Entry) -> bool:
    """Most elements are close."""
    masks = ("none", "padding", "left_padding" if entry.kind == "layer" else "key_padding")
    for case in cases(entry, masks=masks, dtypes=_TOLERANCES):
        atol, rtol = _TOLERANCES[case.dtype]
        output, expected = sides(entry, case)
        close = torch.isclose(output, expected, atol=atol, rtol=rtol)
        if close.double().mean() < _SHARE:
            return False
    return True
