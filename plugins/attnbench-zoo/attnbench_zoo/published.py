"""Published rules by which attention is tested, rebuilt as oracles of the zoo.

No code is copied. Each rule passes what its source passes: a rule that no source gives masks gets
none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from attnbench import Case
from attnbench_zoo.entries import Built, Entry
from attnbench_zoo.right.attention import ATTENTION
from attnbench_zoo.scoring import Oracle

PLAIN = Case(lead=(2, 2), q_len=32, kv_len=32, query_size=16, key_size=16, value_size=16)
"""Two items, two heads, 32 positions, no mask: what most published rules draw, made small."""


HARNESSES: dict[str, Oracle] = {}
"""By name, whether a way to test attention takes an entry's candidate for right."""


def harness(name: str) -> Callable[[Oracle], Oracle]:
    """Add the decorated oracle to :data:`HARNESSES`."""

    def add(oracle: Oracle) -> Oracle:
        HARNESSES[name] = oracle
        return oracle

    return add


def cases(
    entry: Entry,
    *,
    masks: Iterable[str] = ("none",),
    dtypes: Iterable[str] = ("float32",),
    seeds: int = 1,
    like: Case = PLAIN,
) -> Iterator[Case]:
    """The cases among these that an entry supports; a layer has its padding for ``padding``."""
    dtypes = list(dtypes)
    for mask in masks:
        for dtype in dtypes:
            for seed in range(seeds):
                case = like.replace(mask=mask, dtype=dtype, seed=seed)
                if entry.takes(case):
                    yield case


def sides(entry: Entry, case: Case) -> tuple[Tensor, Tensor]:
    """The outputs of candidate and reference."""
    return entry.candidate(case).output(), entry.expected(case).output()


def gradients(built: Built, seed: int = 0) -> list[Tensor]:
    """The gradients of the inputs for one random gradient of the output."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in built.tensors]
    output = built.call(*leaves)
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(output.shape, generator=generator, dtype=torch.float64)
    found = torch.autograd.grad(
        output, leaves, weights.to(output.dtype), allow_unused=True, materialize_grads=True
    )
    return list(found)


MASKS = ("none", "causal", "boolean", "bias", "padding")
"""The forms that tests of attention usually pass."""


def _close(entry: Entry, some: Iterable[Case], tolerance: float) -> bool:
    return all(torch.allclose(*sides(entry, case), atol=tolerance, rtol=tolerance) for case in some)


@harness("five random inputs")
def five_random_inputs(entry: Entry) -> bool:
    """Allclose with atol = rtol = 1e-2, for five seeds of normal tensors in float32 without a mask.

    Source: KernelBench (Ouyang et al. 2025, arXiv:2502.10517), also in training.
    """
    return _close(entry, cases(entry, seeds=5), 1e-2)


@harness("five random inputs, with masks")
def five_random_inputs_and_masks(entry: Entry) -> bool:
    """The same rule with each form of mask, which no source does: the calls are what differs."""
    return _close(entry, cases(entry, masks=MASKS, seeds=5), 1e-2)


@harness("torch.testing.assert_close")
def assert_close_defaults(entry: Entry) -> bool:
    """assert_close with torch's own tolerances, in four dtypes and with each form of mask.

    They are rtol 1.3e-6 in float32, and 1e-3 and 1.6e-2 in half types.
    """
    dtypes = ("float64", "float32", "float16", "bfloat16")
    for case in cases(entry, masks=MASKS, dtypes=dtypes):
        torch.testing.assert_close(*sides(entry, case))
    return True


SMALL = PLAIN.replace(lead=(2,), q_len=3, kv_len=6, query_size=4, key_size=4, value_size=4)
"""Finite differences take two calls for each element."""


@harness("gradcheck")
def gradcheck_alone(entry: Entry) -> bool:
    """Derivatives equal finite differences in float64, with no, causal and floating masks.

    The output is compared with nothing. Source: torch.autograd.gradcheck, its defaults.
    """
    for case in cases(entry, masks=("none", "causal", "bias"), dtypes=("float64",), like=SMALL):
        built = entry.candidate(case)
        tensors = [tensor.detach().clone().requires_grad_() for tensor in built.tensors]
        torch.autograd.gradcheck(built.call, tensors, fast_mode=False)
    return True


_SAMPLES = PLAIN.replace(lead=(4, 4), q_len=3, kv_len=6, query_size=8, key_size=8, value_size=8)


@harness("OpInfo")
def operator_info(entry: Entry) -> bool:
    """assert_close to the reference, also of tensors that are not contiguous, and gradcheck.

    Its samples have L = 3, S = 6, three and four dimensions, causality, one floating mask and three
    dtypes. Source: torch.testing._internal.common_methods_invocations,
    scaled_dot_product_attention.
    """
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


_HALF = ("float16", "bfloat16")


def _textbook(entry: Entry, case: Case) -> Built:
    """Textbook attention in the dtype of the case; the reference itself where it is no such."""
    built = entry.expected(case)
    if entry.reference is not ATTENTION:
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


@harness("flash-attention's ratio")
def flash_attention_ratio(entry: Entry) -> bool:
    """Errors of output and gradients at most twice the textbook's, + twice the rounding of 0.3.

    In half types, causal or not, with padding. Source: flash-attention, test_flash_attn.py,
    test_flash_attn_output.
    """
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
