from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnbench import KernelSpec
from tests.invariant_runs import case_of, run


def _wide(tensor: Tensor) -> Tensor:
    return tensor.float() if tensor.dtype.itemsize == 2 else tensor


def expanded_distance(query: Tensor, key: Tensor) -> Tensor:
    lengths = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
    return query @ key.mT - 0.5 * lengths


def test_a_kernel_is_held_to_the_laws_of_its_output() -> None:
    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, **masks: Any) -> Tensor:
        bandwidth = (2 * query.shape[-1]) ** -0.5
        scores = bandwidth * expanded_distance(_wide(query), _wide(key))
        if masks.get("attn_mask") is not None:
            scores = scores.masked_fill(~masks["attn_mask"], -torch.inf)
        output: Tensor = (scores.softmax(-1) @ _wide(value)).to(query.dtype)
        return output

    kernel = KernelSpec(name="expanded", scoring="gaussian", attend=attend)
    wrong = run(kernel, "translation_invariant")
    assert wrong.status == "failed"
    assert case_of(wrong).dtype in ("float32", "float64", "bfloat16", "float16")
    assert run(kernel, "monotone_in_distance").status == "skipped"
