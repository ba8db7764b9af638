"""Invariants on masks by position: lengths, windows and causality end where they say."""

from __future__ import annotations

import functools
import math
from typing import Any

import torch

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import changed
from attnbench.invariants.toolkit.applicability import any_of, knows_positions, ties
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import (
    benign,
    junk_in_words,
    select_keys,
    unmasked,
    with_junk,
)
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import largest

_BEYOND_BFLOAT16 = 290
"""Keys, one less of which bfloat16 takes for two less."""

_LENGTH_DTYPES = (torch.int64, torch.int32, torch.uint8, torch.int8)


def _longer(subject: Subject, case: Case) -> Case:
    """The case with more keys than the narrow integers of some lengths count."""
    longer = case.replace(kv_len=case.kv_len + 256)
    return longer if subject.legal(longer) == longer else case


def _lengths(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    per_item = case.variant("lengths", "per_item") == "per_item"
    shape = case.lead[:1] if per_item else (case.lead[0], case.q_len)
    narrow = case.kv_len > 256
    number = case.variant("dtype", 0)
    dtype = _LENGTH_DTYPES[number % 2 + 2 if narrow else number]
    most = min(case.kv_len, torch.iinfo(dtype).max)
    some = torch.tensor([1, most, max(1, most - 1)], dtype=dtype).roll(case.variant("first", 0))
    lens = some.repeat(math.prod(shape))[: math.prod(shape)].reshape(shape)
    base = base.on(base.inputs.replace(valid_lens=lens.to(case.device)))
    for length in sorted(set(lens.flatten().tolist())):
        place = (lens == length).nonzero()[-1].tolist()
        suffix = "" if dtype == torch.int64 else f" ({str(dtype).removeprefix('torch.')})"
        what = f"with valid_lens{place} = {length}{suffix} of {case.kv_len} keys"
        index: tuple[Any, ...] = (place[0],)
        if len(place) == 2:  # one length a query: its row in every head of the item
            index = (place[0], ..., place[1], slice(None))
        first = select_keys(unmasked(base.inputs), torch.arange(length))
        base.expect(
            base.run(first)[index],
            f"given the first {length} keys alone, output[{place[0]}]",
            f"the same query {what}",
            taken=lambda output, index=index: output[index],  # type: ignore[misc]
        )


def _exact_length(subject: Subject, case: Case) -> None:
    """One key less than all, where a mask leaves the last two alone: else none would count."""
    base = Baseline(subject, case)
    start, length = case.kv_len - 2, case.kv_len - 1
    shown = (torch.arange(case.kv_len, device=case.device) >= start).unsqueeze(0)
    lens = torch.full(case.lead[:1], length, device=case.device)
    # what rounding all inside does, as expect allows, would excuse the rounding of a length
    agree_within(
        base.run(select_keys(unmasked(base.inputs), torch.arange(start, length))),
        base.run(base.inputs.replace(attn_mask=shown, valid_lens=lens)),
        16 * subject.eps(base.inputs.query.dtype) * max(1.0, largest(base.inputs.value)),
        f"given key {start} alone, output",
        f"valid_lens of {length} and a mask that leaves the last two of {case.kv_len} keys",
    )


@invariant(
    cases=lambda subject: changed(
        benign(
            subject,
            masks=("padding", "lengths_2d"),
            leads=(1, 2, 3),
            variants={
                "lengths": ("per_query", "per_item"),
                "first": range(3),
                "dtype": range(4),
            },
            beyond=(
                Case((2,), 2, _BEYOND_BFLOAT16, dtype="bfloat16", mask="padding"),
                Case((2,), 2, 261, mask="padding"),  # more than a byte counts
            ),
        ),
        *[lambda case: case] * 3,
        functools.partial(_longer, subject),
    ),
    applies=any_of(knows_positions, ties("kv_len")),
)
def valid_lengths_count_the_keys(subject: Subject, case: Case) -> None:
    """A length of n, an integer of any width, leaves the first n keys; a length of S leaves all."""
    exact = case.kv_len == _BEYOND_BFLOAT16 and "masking_equals_deleting" not in subject.exempt
    (_exact_length if exact else _lengths)(subject, case)


@invariant(
    cases=benign,
    masks=("causal", "causal_padding"),
    min_q_len=2,
    max_len=257,
    beyond=tuple(Case((1,), length, length, mask="causal") for length in range(2, 17)),
)
def future_does_not_leak(subject: Subject, case: Case) -> None:
    """With is_causal, no later query, key or value changes what a query gets."""
    base = Baseline(subject, case)
    row = base.choose(case.q_len - 1)  # the last one has no future
    top_left = subject.conventions.causal == "top_left"
    last = row if top_left else row + case.kv_len - case.q_len
    if last + 1 >= case.kv_len:
        reject("no key is later")
    junk = with_junk(subject, base.inputs, torch.arange(last + 1, case.kv_len))
    later = torch.arange(case.q_len, device=case.device)[:, None] > row
    got = base.run(junk.replace(query=torch.where(later, -1.5 * junk.query, junk.query)))
    base.expect(
        got[..., : row + 1, :],
        f"with {junk_in_words(subject, base.inputs)} of the slots after {last}, "
        f"the last that query {row} may see, and other later queries, output",
        "the same call with what these slots and queries hold",
        taken=lambda output: output[..., : row + 1, :],
    )


def _cannot_decode(subject: Subject) -> str | None:
    if subject.conventions.positions == "absolute":
        return "positions are absolute (convention positions)"
    if subject.conventions.causal in ("top_left", "square"):
        return f"is_causal is {subject.conventions.causal}: a step's mask is another one"
    return None


@invariant(
    cases=benign,
    masks=("causal",),
    min_kv_len=2,
    beyond=(
        Case((1,), 140, 140, mask="causal"),
        Case((1,), 32, 64, mask="causal"),  # whole tiles of both, for which there are other paths
    ),
    applies=any_of(_cannot_decode, ties("q_len", "kv_len")),
)
def decode_equals_prefill(subject: Subject, case: Case) -> None:
    """Causal queries one by one, or the last few, give what all at once give."""
    base = Baseline(subject, case)
    last = base.inputs.query
    earlier = torch.arange(case.kv_len - case.q_len, device=last.device) % case.q_len
    query = torch.cat([last.index_select(-2, earlier).flip(-1), last], -2)
    base = base.on(base.inputs.replace(query=query))
    key, value = base.inputs.key, base.inputs.value
    row = base.choose(case.kv_len)
    for start, end in ((case.kv_len - case.q_len, case.kv_len), (row, row + 1)):
        step = base.inputs.replace(
            query=query[..., start:end, :], key=key[..., :end, :], value=value[..., :end, :]
        )
        change = f"given queries {start} .. {end - 1} and keys 0 .. {end - 1}, output"
        base.expect(
            base.run(step),
            f"with is_causal=True, {change}",
            f"the same query among all {case.kv_len}",
            taken=lambda output, start=start, end=end: output[..., start:end, :],  # type: ignore[misc]
        )
