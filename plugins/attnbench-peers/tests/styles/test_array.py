from typing import Any

import numpy as np
import torch

import attnbench
from attnbench import adapters


def in_numpy(query: Any, key: Any, value: Any, attn_mask: Any = None, scale: Any = None) -> Any:
    """Attention of arrays (B, H, L, E), in float64."""
    wide = [array.astype("float64") for array in (query, key, value)]
    scores = wide[0] * (query.shape[-1] ** -0.5 if scale is None else scale)
    scores = scores @ wide[1].swapaxes(-1, -2)
    if attn_mask is not None and attn_mask.dtype == bool:
        scores = np.where(attn_mask, scores, -np.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask.astype("float64")
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isinf(top), 0.0, top))
    total = weights.sum(-1, keepdims=True)
    return (weights / np.where(total > 0, total, 1.0) @ wide[2]).astype(query.dtype)


FEW = [
    "agrees_with_scalar_reference",
    "gradients_are_right",
    "keeps_the_contract",
    "leading_sizes_fold",
    "masking_equals_deleting",
    "scale_multiplies_scores",
]


def spec(function: Any, **fields: Any) -> attnbench.MechanismSpec:
    fields = {"dtypes": ("float32", "float64"), **fields}
    return adapters.array(function, lambda tensor: tensor.numpy(), torch.from_numpy, **fields)


def test_a_function_of_arrays_is_checked_forward_only() -> None:
    report = attnbench.check(spec(in_numpy), profile="quick", invariants=FEW)
    assert report.ok, str(report)
    reasons = {outcome.invariant: outcome.reason for outcome in report.outcomes}
    assert reasons["gradients_are_right"] == "forward only (convention gradients)"
    assert len(report.of("passed")) == len(FEW) - 1


def test_a_function_that_writes_to_its_arrays_changes_no_tensor() -> None:
    def spoils(query: Any, key: Any, value: Any) -> Any:
        output = in_numpy(query, key, value)
        query[:] = 0.0
        return output

    report = attnbench.check(spec(spoils), profile="quick", invariants=["inputs_are_unchanged"])
    assert report.ok, str(report)


def test_a_mask_that_is_ignored_is_told() -> None:
    def deaf(query: Any, key: Any, value: Any, attn_mask: Any = None) -> Any:
        return in_numpy(query, key, value)

    report = attnbench.check(spec(deaf), profile="quick", invariants=["masking_equals_deleting"])
    assert [outcome.status for outcome in report.outcomes] == ["failed"]
