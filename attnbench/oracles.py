"""References: what the output should be, computed twice by code that shares nothing.

:func:`float64_output` is vectorised and in float64; :func:`scalar_output` is Python floats. Neither
uses the masks' folding or the softmax that subjects use. They are compared with each other before
either judges a subject.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.inputs import Inputs
from attnbench.specs import MechanismSpec
from attnbench.subject import Subject

__all__ = ["allowed_and_bias", "budget", "float64_output", "scalar_output", "widened"]


def allowed_and_bias(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """``(*lead, L, S)`` each: which keys are left, and what is added, by definition, on the CPU."""
    query, key = inputs.query, inputs.key
    lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
    allowed = torch.ones(*lead, q_len, kv_len, dtype=torch.bool)
    bias = torch.zeros(*lead, q_len, kv_len, dtype=torch.float64)
    if inputs.attn_mask is not None:
        mask = inputs.attn_mask.detach().cpu().broadcast_to(allowed.shape)
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            allowed = allowed & (mask > -math.inf)
            bias = torch.where(allowed, mask.double(), bias)
    if inputs.valid_lens is not None:
        for item, lens in enumerate(inputs.valid_lens.tolist()):
            for row in range(q_len):
                allowed[item, ..., row, lens[row] if isinstance(lens, list) else lens :] = False
    if inputs.is_causal:
        for row in range(q_len):
            allowed[..., row, max(0, row + 1 + kv_len - q_len) :] = False
    return allowed, bias


def widened(module: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Module and inputs in float64 on the CPU; the values are those of the narrower dtype."""

    def widen(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or not tensor.is_floating_point():
            return None if tensor is None else tensor.detach().cpu()
        return tensor.detach().cpu().double()

    tensors: dict[str, Any] = {name: widen(tensor) for name, tensor in inputs.tensors()}
    return copy.deepcopy(module).cpu().double(), inputs.replace(**tensors)


def float64_output(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor:
    """The output ``(*lead, L, Ev)`` in float64 on the CPU.

    For a scoring function or kernel: the scoring module in float64, softmax and pooling written out
    here. For a mechanism: the mechanism itself in float64.
    """
    wide_module, wide = widened(module, inputs)
    with torch.no_grad():
        if isinstance(subject.spec, MechanismSpec):
            return subject.output(wide_module, wide)
        allowed, bias = allowed_and_bias(wide)
        # a slot that every query is kept from may hold NaN, which 0 times it would spread
        seen = allowed.any(-2).unsqueeze(-1)
        key, value = (torch.where(seen, t, torch.zeros_like(t)) for t in (wide.key, wide.value))
        scores = wide_module(wide.query, key) + bias
        scores = torch.where(allowed, scores, torch.full_like(scores, -math.inf))
        top = scores.amax(-1, keepdim=True)
        raw = torch.where(allowed, (scores - top).exp(), torch.zeros_like(scores))
        total = raw.sum(-1, keepdim=True)
        weights = torch.where(total > 0, raw / total, torch.zeros_like(raw))
        return torch.einsum("...ls,...sv->...lv", weights, value)


def scalar_output(subject: Subject, module: nn.Module, inputs: Inputs) -> Tensor | None:
    """The same by Python floats, from ``spec.reference``; ``None`` if there is no reference."""
    reference: Callable[..., Any] | None = subject.maker.reference
    if reference is None:
        return None
    wide_module, wide = widened(module, inputs)
    allowed, bias = allowed_and_bias(wide)
    count = math.prod(wide.query.shape[:-2])
    tensors = (wide.query, wide.key, wide.value, allowed, bias)
    query, key, value, may, add = (t.reshape(count, *t.shape[-2:]).tolist() for t in tensors)
    is_mechanism = isinstance(subject.spec, MechanismSpec)
    if is_mechanism and bool((bias != 0).any()):
        return None  # its reference knows booleans only
    items = []
    for item in range(count):
        if is_mechanism:
            items.append(reference(wide_module, query[item], key[item], value[item], may[item]))
        else:
            score = functools.partial(reference, wide_module)
            items.append(_pooled(score, query[item], key[item], value[item], may[item], add[item]))
    shape = (*wide.query.shape[:-1], wide.value.shape[-1])
    if items and len(items[0]) and len(items[0][0]) != shape[-1]:
        shape = (*shape[:-1], len(items[0][0]))
    return torch.tensor(items, dtype=torch.float64).reshape(shape)


def _pooled(
    score: Callable[[list[float], list[float]], float],
    query: list[list[float]],
    key: list[list[float]],
    value: list[list[float]],
    allowed: list[list[bool]],
    bias: list[list[float]],
) -> list[list[float]]:
    rows = []
    for q, may, add in zip(query, allowed, bias, strict=True):
        slots = [s for s, yes in enumerate(may) if yes]
        scores = [score(q, key[s]) + add[s] for s in slots]
        top = max(scores, default=0.0)
        weights = [math.exp(x - top) for x in scores]
        total = math.fsum(weights)
        rows.append(
            [
                math.fsum(w * value[s][e] for w, s in zip(weights, slots, strict=True)) / total
                if slots
                else 0.0
                for e in range(len(value[0]))
            ]
        )
    return rows


def budget(
    function: Callable[[nn.Module, Inputs], Tensor],
    module: nn.Module,
    inputs: Inputs,
    expected: Tensor,
    *,
    draws: int = 4,
) -> Tensor:
    """What an output may be off by: 4 times what moving all by one unit in the last place does.

    Args:
        function: the output in float64 of a module and inputs in float64.
        module: in the dtype under test.
        inputs: likewise.
        expected: ``function`` of the unmoved ones.
        draws: how many directions are tried; the largest change of an output row counts.

    Returns:
        ``(*lead, L, 1)``: the largest allowed absolute error of a row, never less than 4 units of
        the row's largest value.
    """
    eps = torch.finfo(inputs.query.dtype).eps
    wide_module, wide = widened(module, inputs)
    generator = torch.Generator().manual_seed(0)

    def moved(tensor: Tensor) -> Tensor:
        signs = torch.randint(2, tensor.shape, generator=generator).double() * 2 - 1
        return tensor * (1 + eps * signs)

    largest = expected.abs().amax(-1, keepdim=True) * eps
    for _ in range(draws):
        near = copy.deepcopy(wide_module)
        with torch.no_grad():
            for tensor in (*near.parameters(), *near.buffers()):
                if tensor.is_floating_point():
                    tensor.copy_(moved(tensor))
            changed = function(near, wide.map(moved))
        change = (changed - expected).abs().amax(-1, keepdim=True)
        largest = torch.maximum(largest, torch.nan_to_num(change))
    scale = wide.value.abs().amax().clamp_min(1e-30) * eps if wide.value.numel() else eps
    return 4 * torch.maximum(largest, torch.as_tensor(scale, dtype=torch.float64))
