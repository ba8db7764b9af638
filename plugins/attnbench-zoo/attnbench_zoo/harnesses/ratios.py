"""Rules that allow some multiple of the error that a low-precision textbook form makes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnbench import Case
from attnbench_zoo.entries import Built, Entry
from attnbench_zoo.harnesses.base import cases, gradients, harness
from attnbench_zoo.twins.attention import ATTENTION

__all__ = ["flash_attention_ratio", "twice_the_textbook"]

_HALF = ("float16", "bfloat16")


def _textbook(entry: Entry, case: Case) -> Built:
    """Textbook attention in the dtype of the case; the reference itself where it is no such."""
    built = entry.expected(case)
    if entry.reference is not ATTENTION.spec:
        return built
    inputs = built.inputs
    allowed = inputs.allowed
    bias = inputs.attn_mask if inputs.attn_mask is not None else torch.zeros(())
    bias = torch.zeros(()) if bias.dtype == torch.bool else bias

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.mT / math.sqrt(query.shape[-1]) + bias.to(query.dtype)
        return scores.masked_fill(~allowed, -math.inf).softmax(-1) @ value

    return built._replace(call=call)


def _exact(entry: Entry, case: Case) -> Built:
    """The reference in float32, on the rounded inputs and parameters."""
    built = entry.expected(case)
    module, call = built.module, built.call

    def wide(*tensors: Tensor) -> Tensor:
        module.float()
        return call(*(t.float() for t in tensors))

    return built._replace(call=wide)


def _error(found: Tensor, exact: Tensor) -> Tensor:
    return (found.float() - exact).abs().max()


@harness(
    "twice the textbook's error",
    source="a rule of many tests of fused kernels",
    rule="largest error at most twice that of the textbook form in the same dtype, + 1e-5",
    passes="float16 and bfloat16, no mask",
)
def twice_the_textbook(entry: Entry) -> bool:
    """Forward only."""
    for case in cases(entry, dtypes=_HALF, seeds=2):
        exact = _exact(entry, case).output()
        allowed = 2 * _error(_textbook(entry, case).output(), exact) + 1e-5
        if not _error(entry.candidate(case).output(), exact) <= allowed:
            return False
    return True


@harness(
    "flash-attention's ratio",
    source="flash-attention, test_flash_attn.py, test_flash_attn_output",
    rule="errors of output and gradients at most twice the textbook's, + twice the rounding of 0.3",
    passes="float16 and bfloat16, causal or not, padding, lengths 32 and 32, 17 and 33, 1 and 40",
)
def flash_attention_ratio(entry: Entry) -> bool:
    """Forward and backward."""
    for q_len, kv_len in ((32, 32), (17, 33), (1, 40)):
        for case in cases(entry, masks=("none", "causal", "padding"), dtypes=_HALF):
            if not _in_ratio(entry, case.replace(q_len=q_len, kv_len=kv_len)):
                return False
    return True


def _in_ratio(entry: Entry, case: Case) -> bool:
    exact, textbook, built = _exact(entry, case), _textbook(entry, case), entry.candidate(case)
    true = [exact.output(), *gradients(exact)]
    rough = [textbook.output(), *gradients(textbook)]
    found = [built.output(), *gradients(built)]
    for own, low, high in zip(found, rough, true, strict=True):
        rounding = (high.to(own.dtype) + 0.3 - 0.3).float() - high.to(own.dtype).float()
        if (
            not _error(own, high.float())
            <= 2 * _error(low, high.float()) + 2 * rounding.abs().max()
        ):
            return False
    return True
