"""What a selection of rows does to a cache: nothing to a part of it, too much, or no copies."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.invariants.caches.attribution import played
from attnbench.invariants.caches.cache_parts import tensors_of
from attnbench.invariants.caches.kept_states import changes
from attnbench.invariants.caches.program import Step
from attnbench.invariants.caches.seen_tokens import Replay, moves
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.invariants.toolkit.layer_rounding import floor_of, worst_place

ALL_ROWS = "selecting all rows in their order"


def after_calls(stage: Stage, rows: int, *counts: int) -> tuple[nn.Module, Any]:
    """A module, and its cache of some rows after calls on so many tokens each."""
    module, start = stage.module(), 0
    cache = stage.subject.new_cache(module, rows)
    for count in counts:
        tokens = stage.tokens[:rows, start : start + count].clone()
        _, cache = stage.subject.call(module, tokens, None, cache)
        start += count
    return module, cache


def left_by_select(stage: Stage, found: FoundError) -> str:
    """The tensors that the first selection of a program changes, and those that it leaves.

    One of all rows in their order should change none.
    """
    begin, *rest = found.steps
    select = next(step for step in rest if step.kind == "select")
    _, cache = after_calls(stage, begin.count, 3)
    before = {place: tensor.clone() for place, tensor in tensors_of(cache)}
    cache = stage.subject.select(cache, torch.tensor(select.rows, device=stage.tokens.device))
    if select.rows == (*range(begin.count),):
        return _changed_by_all(before, dict(tensors_of(cache)))
    changed, left = changes(before, cache, begin.count)
    of = ", ".join(changed) or "no tensor of the cache"
    return f"\n  select changes {of}, and leaves {', '.join(left)} as it was" if left else ""


def _changed_by_all(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """The tensors of other numbers than before a selection of all rows, unless some are cut."""
    kept = {place: (before[place], tensor) for place, tensor in now.items() if place in before}
    if any(old.shape != new.shape for old, new in kept.values()):
        return ""
    changed = [
        f"{place} {tuple(new.shape)}"
        for place, (old, new) in kept.items()
        if not torch.equal(old.nan_to_num(), new.nan_to_num())
    ]
    return f"\n  {ALL_ROWS} changes {', '.join(changed)}" if changed else ""


def selects_both_ways(stage: Stage) -> bool:
    """Whether a selection that returns another cache also changes the given one."""
    subject, step = stage.subject, stage.tokens[:2, 3:4].clone()
    try:
        with torch.no_grad():
            module, cache = after_calls(stage, 2, 3)
            before = copy.deepcopy(cache)
            given = subject.select(cache, torch.tensor([1, 0], device=step.device))
            if given is cache:
                return False
            expected, _ = subject.call(module, step, None, before)
    except Exception:  # the program itself reports other errors
        return False
    try:
        with torch.no_grad():
            got, _ = subject.call(module, step, None, cache)
    except Exception:  # changed so much that it is unusable
        return True
    real = torch.ones_like(expected, dtype=torch.bool)
    return worst_place(got, expected, 4 * floor_of(subject, expected), real) is not None


def shared_rows(stage: Stage, found: FoundError) -> str:
    """A sentence on rows that are selected from one row and reach each other afterwards."""
    kinds = [step.kind for step in found.steps]
    if not found.place or kinds.count("select") != 1 or "fork" in kinds:
        return ""
    row, origins = found.place[0], found.steps[kinds.index("select")].rows
    before, own_before, start = _outputs(stage, found)
    for twin in (n for n, of in enumerate(origins) if of == origins[row] and n != row):
        other = copy.copy(stage)
        other.tokens = stage.tokens.clone()
        other.tokens[twin, start:] *= -2
        after, own_after, _ = _outputs(other, found)
        if moves(stage, after, before) and not moves(stage, own_after, own_before):
            which = f"what is appended to row {twin}, which was selected from the same row"
            right = "with rows that are only turned round it is right"
            turned = {"begin": Step("begin", count=2), "select": Step("select", rows=(1, 0))}
            program = tuple(turned.get(step.kind, step) for step in found.steps)
            if played(stage, "rows", program) is None:
                return f"\n  row {row} depends on {which}; {right}"
    return ""


def _outputs(stage: Stage, found: FoundError) -> tuple[Tensor, Tensor, int]:
    """The wrong output, that of the same chunks without a selection, and the selection's column."""
    replay, start = Replay(stage, "rows"), 0
    for step in found.steps:
        replay.play(step)
        start = replay.columns if step.kind == "select" else start
    track, (row, back, _) = replay.track, found.place
    assert replay.output is not None
    assert track is not None
    twin = replay.twin(track, track.seen, track.mask)
    assert twin is not None
    return replay.output[row, back], twin[row, back], start
