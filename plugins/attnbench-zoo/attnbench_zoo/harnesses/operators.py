"""The way in which torch tests this operator."""

from __future__ import annotations

import torch

from attnbench_zoo.entries import Entry
from attnbench_zoo.harnesses.base import PLAIN, cases, harness, sides
from attnbench_zoo.harnesses.derivatives import SMALL

__all__ = ["operator_info"]

_SAMPLES = PLAIN.replace(lead=(4, 4), q_len=3, kv_len=6, query_size=8, key_size=8, value_size=8)


@harness(
    "OpInfo",
    source="torch.testing._internal.common_methods_invocations, scaled_dot_product_attention",
    rule="assert_close to the reference, also of tensors that are not contiguous, and gradcheck",
    passes="L = 3, S = 6, three and four dimensions, causal, one floating mask, three dtypes",
)
def operator_info(entry: Entry) -> bool:
    """Its samples, through the tests that are made of them."""
    masks, dtypes = ("none", "causal", "bias"), ("float32", "bfloat16", "float16")
    for lead in ((4,), (4, 4)):
        like = _SAMPLES.replace(lead=lead)
        for layout in ("contiguous", "strided"):
            some = cases(entry, masks=masks, dtypes=dtypes, like=like.replace(layout=layout))
            for case in some:
                torch.testing.assert_close(*sides(entry, case))
    for case in cases(entry, masks=masks, dtypes=("float64",), like=SMALL):
        built = entry.candidate(case)
        leaves = [tensor.detach().clone().requires_grad_() for tensor in built.tensors]
        torch.autograd.gradcheck(built.call, leaves, fast_mode=True)
        torch.autograd.gradgradcheck(built.call, leaves, fast_mode=True)
    return True
