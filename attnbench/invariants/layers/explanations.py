"""Explanations of failing programs: a known cause, or what the failure depends on."""

from __future__ import annotations

import copy

import torch

from attnbench.invariants.layers.attribution import played
from attnbench.invariants.layers.cache_tensors import left_by_selection, tensors_of
from attnbench.invariants.layers.other_cuts import in_double, other_cuts
from attnbench.invariants.layers.program_stage import FoundError, Stage
from attnbench.invariants.layers.rounding import floor_of, worst_place
from attnbench.invariants.layers.seen_tokens import seen_tokens

__all__ = ["explanation"]

_BOTH = (
    "\n  select changed the cache that it was given and gave another one: it should do one or the "
    "other."
)
_NARROW = (
    "\n  With a mask of the new tokens alone nothing of this happens: the layer takes a mask "
    "(B, L), but padding_mask is (B, length + L), that of the cached tokens too."
)


def explanation(stage: Stage, judged: str, found: FoundError) -> str:
    """Lines that name the cause, or narrow it down; empty if nothing is known."""
    kinds = {step.kind for step in found.program}
    if "select" in kinds and _selects_both_ways(stage):
        return _BOTH
    if judged in ("alone", "mixed", "rows") and found.program[0].rows:
        narrow = Stage(stage.subject, stage.case, narrow_masks=True)
        if played(narrow, judged, found.program) is None:
            return _NARROW
    if judged == "ledger":
        return _lengths(stage)
    if judged == "rows" and "select" in kinds:
        told = _left(stage, found)
        if told:
            return told
    cuts = other_cuts(stage, found) if judged == "split" else ""
    return seen_tokens(stage, judged, found) + cuts + in_double(stage, judged, found)


def _left(stage: Stage, found: FoundError) -> str:
    """The tensors that the first selection of a program changes, and those that it leaves."""
    subject, module = stage.subject, stage.module()
    begin, *rest = found.program
    select = next(step for step in rest if step.kind == "select")
    try:
        with torch.no_grad():
            cache = subject.new_cache(module, begin.count)
            tokens = stage.tokens[: begin.count, :3].clone()
            _, cache = subject.call(module, tokens, None, cache)
            before = {place: tensor.clone() for place, tensor in tensors_of(cache)}
            cache = subject.select(cache, torch.tensor(select.rows, device=tokens.device))
    except Exception:  # the program itself reports other errors
        return ""
    changed, left = left_by_selection(before, dict(tensors_of(cache)), begin.count)
    if not left:
        return ""
    of = ", ".join(changed) or "no tensor of the cache"
    return f"\n  select changes {of}, and leaves {', '.join(left)} as it was"


def _lengths(stage: Stage) -> str:
    """What the length is said to be after each of some appends to a new cache."""
    told: list[str] = []
    for counts in ((1,), (3,), (1, 1), (3, 2)):
        try:
            said = _length_after(stage, counts)
        except Exception:  # the program itself reports other errors
            return ""
        told.append(f"{said!r} after {' + '.join(map(str, counts))}")
    return f"\n  a new cache says {', '.join(told)}"


def _length_after(stage: Stage, counts: tuple[int, ...]) -> object:
    subject, module, start = stage.subject, stage.module(), 0
    with torch.no_grad():
        cache = subject.new_cache(module, 1)
        for count in counts:
            tokens = stage.tokens[:1, start : start + count].clone()
            _, cache = subject.call(module, tokens, None, cache)
            start += count
    assert subject.spec.cache is not None
    assert subject.spec.cache.length is not None
    return subject.spec.cache.length(cache)


def _selects_both_ways(stage: Stage) -> bool:
    """Whether a selection that returns another cache also changes the given one."""
    subject, module = stage.subject, stage.module()
    tokens = stage.tokens[:2]
    try:
        with torch.no_grad():
            cache = subject.new_cache(module, 2)
            _, cache = subject.call(module, tokens[:, :3], None, cache)
            before = copy.deepcopy(cache)
            given = subject.select(cache, torch.tensor([1, 0], device=tokens.device))
            if given is cache:
                return False
            step = tokens[:, 3:4]
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
