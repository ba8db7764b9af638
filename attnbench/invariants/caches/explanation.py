"""Explanations of failing programs: a known cause, or what the failure depends on."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnbench.errors import either
from attnbench.invariants.caches.attribution import played
from attnbench.invariants.caches.cache_parts import tensors_of
from attnbench.invariants.caches.cropping import CUTS, KEEPS, LEAVES, left_by_crop
from attnbench.invariants.caches.hidden_keys import BOTH, HIDES, SHOWS, hidden_keys
from attnbench.invariants.caches.kept_states import (
    NAMED,
    RIGHT_WITH_IT,
    UNWRITTEN,
    USED,
    changes,
    kept_states,
)
from attnbench.invariants.caches.player import Player
from attnbench.invariants.caches.program import steps
from attnbench.invariants.caches.repaired_calls import repaired_call, repaired_padding
from attnbench.invariants.caches.row_selection import (
    ALL_ROWS,
    after_calls,
    left_by_select,
    selects_both_ways,
    shared_rows,
)
from attnbench.invariants.caches.seen_tokens import OTHER_ROW, SEES, UNTOLD, seen_tokens
from attnbench.invariants.caches.stage import FoundError, Stage, stage_of
from attnbench.invariants.caches.wrong_heads import OTHERS, wrong_heads
from attnbench.invariants.caches.wrong_lines import TIMES, wrong_line
from attnbench.invariants.toolkit.kept_values import KEPT, kept_values
from attnbench.invariants.toolkit.layer_rounding import floor_of, worst_place
from attnbench.invariants.toolkit.mixing import first_mixing

_LONGEST = 12
"""Most tokens of a program that is cut otherwise."""

_SMALL = 1e3
"""An error of less, in units of what is allowed, may look like rounding."""

_BOTH_WAYS = (
    "\n  select changed the cache that it was given and gave another one: it should do one or the "
    "other."
)
_TOTAL = "\n  in one call without a cache, outputs change with how many tokens follow"
_NARROW = (
    "\n  With a mask of the new tokens alone nothing of this happens: the layer takes a mask "
    "(B, L), but padding_mask is (B, length + L), that of the cached tokens too."
)


def explanation(stage: Stage, judged: str, found: FoundError) -> str:
    """Lines that name the cause, or narrow it down; empty if nothing is known."""
    kinds = {step.kind for step in found.steps}
    if "select" in kinds and selects_both_ways(stage):
        return _BOTH_WAYS
    if judged in ("alone", "mixed", "rows") and found.steps[0].rows:
        narrow = Stage(stage.subject, stage.case, narrow_masks=True)
        longer = steps(len(found.steps[0].rows), 3, 1, 1, pads=[2] * len(found.steps[0].rows))
        if all(played(narrow, judged, program) is None for program in (found.steps, longer)):
            return _NARROW
    if judged == "ledger":
        return _text(_lengths, stage, found)
    if judged == "rows" and "select" in kinds:
        text = _text(shared_rows, stage, found) or _text(left_by_select, stage, found)
        if text:
            return text
    if "crop" in kinds and (text := _text(left_by_crop, stage, found)):
        return text
    if kept := _text(functools.partial(_kept, judged), stage, found):
        return kept
    others = functools.partial(_other_cuts, judged)
    further: dict[str, list[Callable[[Stage, FoundError], str]]] = {
        "split": [wrong_heads, others, _unread, _unwritten, _total_counts],
        "alone": [lambda s, _: repaired_padding(s.subject, 5), others],
        "ragged": [lambda s, _: repaired_padding(s.subject, 5)],
    }
    line, states = "", ""
    for each in filter(None, (_double(stage), stage)):
        line = line or _text(functools.partial(wrong_line, judged), each, found)
        states = states or _text(functools.partial(kept_states, judged), each, found)
    texts = [_text(of, stage, found) for of in further.get(judged, ())]
    seen = seen_tokens(stage, judged, found)
    # with other scores, more tokens may count that were seen before
    seen = seen.replace(f": {SEES}", "") if line.endswith(TIMES) else seen
    line += _text(functools.partial(hidden_keys, judged), stage, found) if SEES in seen else ""
    if judged == "split" and all(step.kind in ("begin", "append") for step in found.steps):
        repaired = repaired_call(stage.subject, 0) or repaired_call(stage.subject, 3)
        seen = (seen.replace(UNTOLD, "") if repaired else seen) + repaired
    return seen + states + line + "".join(texts) + _in_double(stage, judged, found)


def cause_of(explained: str, judged: str) -> str | None:
    """The cause that an explanation names, or the form of that of its property."""
    if "with that number" in explained and judged == "rollback":
        return "cropped_number"
    cropped = {CUTS: "crop_cuts_more", LEAVES: "crop_leaves_part", KEEPS: "crop_keeps_others"}
    told = {
        **(cropped if ", crop to " in explained else {}),
        "goes on behind the tokens that are cached": "counted_anew",
        UNWRITTEN: "layer_unwritten",
        KEPT: "layer_state",
        "each token adds": "layer_slots",
        _TOTAL: "number_of_tokens_counts",
        "selected from the same row": "rows_shared",
        "holds of earlier tokens": "cached_slots_changed",
        "already a first call": "first_call_differs",
        OTHER_ROW: "row_of_another",
        " of the shape (": "other_number_of_slots",
        "with that number": "cached_number",
        "what calls on one token": "left_by_several",
        "there before is lost": "cached_state_lost",
        "there before counts": "cached_state_weighed",
        RIGHT_WITH_IT: "cache_left_otherwise",
        "is counted from the first real": "padding_has_positions",
        "padded slots there are counts": "padding_counted",
        "and no further: ": "seen_as_by_the_last",
        "(padding: ": "padding_seen",
        HIDES: "mask_hides_keys",
        SHOWS: "mask_shows_keys",
        BOTH: "mask_of_others",
        SEES: "other_tokens_seen",
        OTHERS: "heads_read_others",
        USED: "cache_used_otherwise",
        "\n  select changes cache": "part_not_selected",
        ALL_ROWS: "part_changed",
    }
    return next((cause for words, cause in told.items() if words in explained), None)


def _text(of: Callable[[Stage, FoundError], str], stage: Stage, found: FoundError) -> str:
    """A sentence; empty where a call raises, which the program itself reports."""
    try:
        with torch.no_grad():
            return of(stage, found)
    except Exception:
        return ""


def _kept(judged: str, stage: Stage, found: FoundError) -> str:
    """What the module itself keeps of the steps before the last one, which is right without it."""

    def before(module: nn.Module) -> Player:
        player = Player(stage, judged)
        player.module = module
        for step in found.steps[:-1]:
            player.play(step)
        return player

    def is_right(module: nn.Module) -> bool:
        again = copy.copy(player)
        again.module, again.tracks = module, copy.deepcopy(player.tracks)
        again.program, again.lines = list(player.program), copy.deepcopy(player.lines)
        try:
            again.play(found.steps[-1])
        except FoundError:
            return False
        return not again.over

    player = before(stage.module())
    return kept_values(player.module, stage.module(), is_right, before)


def _unread(stage: Stage, found: FoundError) -> str:
    """The tensors of a cache on which the next call does not depend."""
    module, held = after_calls(stage, 1, 3)
    tokens = stage.tokens[:1, 3 : 3 + found.steps[-1].count].clone()
    read: dict[bool, list[str]] = {True: [], False: []}
    expected, _ = stage.subject.call(module, tokens, None, copy.deepcopy(held))
    for number, (place, tensor) in enumerate(tensors_of(held)):
        if tensor.numel() and tensor.is_floating_point():
            cache = copy.deepcopy(held)
            # each number by another one: softmax does not see a number that all keys have in common
            other = torch.linspace(0.5, 1.5, tensor.numel()).reshape(tensor.shape).to(tensor)
            list(tensors_of(cache))[number][1].nan_to_num_().add_(other)
            got, _ = stage.subject.call(module, tokens, None, cache)
            read[not torch.equal(got, expected)].append(f"{place} {tuple(tensor.shape)}")
    count = tokens.shape[1]
    if not read[False] or len(read[False]) > NAMED:
        return ""
    if not read[True] and not _reads_earlier(stage.tokens[:1, : 3 + count], stage):
        return ""
    call = "the next call" if read[True] else f"a next call on {count} token{'s' * (count > 1)}"
    return f"\n  {call} does not read {either(read[False])}, which the cache holds"


def _reads_earlier(tokens: Tensor, stage: Stage) -> bool:
    """Whether outputs behind three tokens depend on these in one call without a cache."""
    others = torch.cat([tokens[:, :3].flip(-1), tokens[:, 3:]], 1)
    got, expected = stage.expected(others), stage.expected(tokens)
    return not torch.equal(got[:, 3:], expected[:, 3:])


def _unwritten(stage: Stage, found: FoundError) -> str:
    """The tensors of a cache that one of the calls leaves, where a first call on more does not."""
    if "source" in stage.subject.accepts:
        return ""
    held = after_calls(stage, 2, 3)[1]
    written, _ = changes(dict(tensors_of(after_calls(stage, 2)[1])), held, 2)
    for count in sorted({step.count for step in found.steps if step.kind == "append"} - {0}):
        _, unchanged = changes(dict(tensors_of(held)), after_calls(stage, 2, 3, count)[1], 2)
        left = [text for text in unchanged if text in written]
        if left:
            tokens = f"{count} token{'s' * (count > 1)}"
            return f"\n  a call on {tokens} leaves {either(left)} as it was"
    return ""


def _total_counts(stage: Stage, found: FoundError) -> str:
    """A sentence where one call on more tokens gives the first of them other outputs."""
    total = sum(step.count for step in found.steps if step.kind == "append")
    whole = stage.expected(stage.tokens[:1, :total])
    for count in range(1, total):
        few = stage.expected(stage.tokens[:1, :count])
        real, floor = torch.ones_like(few, dtype=torch.bool), 4 * floor_of(stage.subject, few)
        if worst_place(whole[:, :count], few, floor, real) is not None:
            return _TOTAL + first_mixing(stage.subject, "number")
    return ""


def _lengths(stage: Stage, found: FoundError) -> str:
    """The lengths that a new cache reports after each of some appends."""
    spec, texts = stage.subject.spec.cache, []
    assert spec is not None
    assert spec.length is not None
    for counts in ((1,), (3,), (1, 1), (3, 2)):
        length = spec.length(after_calls(stage, 1, *counts)[1])
        texts.append(f"{length!r} after {' + '.join(map(str, counts))}")
    return f"\n  a new cache says {', '.join(texts)}"


def _other_cuts(judged: str, stage: Stage, found: FoundError) -> str:
    """A sentence on other cuts of the same tokens; empty if the program does more than append."""
    begin, *rest = found.steps
    if any(step.kind != "append" or step.track or step.rows for step in rest):
        return ""
    cuts = [step.count for step in rest]
    total = sum(cuts)
    if not 1 < total <= _LONGEST:
        return ""
    others = [(total,), (1,) * total, (total - 1, 1), (1, total - 1), (*cuts[:-2], sum(cuts[-2:]))]
    others += [(*cuts[:-1], *[1] * cuts[-1])] if cuts[-1] > 1 else [(*cuts[:-1], 2)]
    outcomes: dict[str, list[str]] = {"right": [], "wrong": []}
    for other in dict.fromkeys(others):
        if list(other) != cuts:
            right = played(stage, judged, steps(begin.count, *other, pads=begin.rows)) is None
            cut = " + ".join(map(str, other)) if len(other) > 1 else f"{total} at once"
            outcomes["right" if right else "wrong"].append(cut)
    if not outcomes["right"]:
        wrong = either(outcomes["wrong"])
        return f"\n  with the cache, no other cut that was tried is right: {wrong}" if wrong else ""
    parts = [f"as {either(as_)} it is {how}" for how, as_ in outcomes.items() if as_]
    return f"\n  cut {'; '.join(parts)}"


def _double(stage: Stage) -> Stage | None:
    """The same stage in float64, where rounding hides least."""
    if "float64" not in stage.subject.dtypes or stage.case.dtype == "float64":
        return None
    return stage_of(stage.subject, stage.case.replace(dtype="float64"))


def _in_double(stage: Stage, judged: str, found: FoundError) -> str:
    """A sentence on a small error in float64; empty where that cannot be told."""
    double = _double(stage)
    if double is None or not found.place or found.error is None or found.error > _SMALL:
        return ""
    again = played(double, judged, found.steps)
    if again is None:
        return "\n  in float64 the same calls are right: precision is lost on the way"
    if not again.place:
        return ""
    if not 0.5 < again.gap / found.gap < 2:
        return ""
    return "\n  in float64 the difference is the same, so that it is not rounding"
