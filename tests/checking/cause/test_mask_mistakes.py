"""Masks that are rounded, or laid over other heads."""

from __future__ import annotations

import math

import torch

from attnbench import Case
from attnbench.checking.cause.mask_mistakes import TOPICS
from attnbench.checking.cause.textbook_call import Call
from attnbench.oracle.textbook import TEXTBOOK, stages_of, textbook_output
from attnbench.subject.tensors import Inputs


def named(given: Inputs, wrong: Inputs) -> set[str]:
    call, output = Call(given, stages_of(given), scaled=True), textbook_output(wrong)
    right = call.stages.output
    assert not torch.allclose(right, output)
    return {n for topic in TOPICS for n, other in topic(call) if torch.allclose(other, output)}


def test_a_floating_mask_that_is_rounded_is_known() -> None:
    given = TEXTBOOK.inputs(Case((2, 3), 4, 6, 8, 8, 5, dtype="float64", mask="bias"))
    assert given.attn_mask is not None
    rounded = given.replace(attn_mask=given.attn_mask.bfloat16().double())
    assert named(given, rounded) == {"bias_rounded"}
    binary = given.replace(attn_mask=given.attn_mask * math.log(2.0))
    assert named(given, binary) == {"bias_of_base_two"}


def test_causality_of_queries_that_are_packed_by_groups_is_known() -> None:
    plain = TEXTBOOK.inputs(Case((2, 2), 4, 6, 8, 8, 5, dtype="float64"))
    query = torch.cat([plain.query, 1 - plain.query], 1)
    given = plain.replace(query=query, enable_gqa=True, is_causal=True, causal="bottom_right")
    last = torch.arange(4)[:, None] // 2 + 2
    wrong = given.replace(is_causal=False, attn_mask=torch.arange(6) <= last)
    assert named(given, wrong) == {"causality_of_packed_groups"}


def test_masks_of_heads_that_lie_apart_in_a_group_are_known() -> None:
    plain = TEXTBOOK.inputs(Case((2, 2), 4, 6, 8, 8, 5, dtype="float64"))
    query = torch.cat([plain.query, 1 - plain.query, plain.query * 2], 1)
    mask = torch.rand(2, 6, 4, 6, generator=torch.Generator().manual_seed(0)) < 0.6
    mask[..., 0] = True
    given = plain.replace(query=query, attn_mask=mask, enable_gqa=True)
    turned = mask.unflatten(1, (3, 2)).transpose(1, 2).flatten(1, 2)
    names = named(given, given.replace(attn_mask=turned))
    assert names == {"mask_laid_over_other_heads_of_groups"}
