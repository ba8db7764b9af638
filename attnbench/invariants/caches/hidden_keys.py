"""The mask that hides keys from a token which it sees in one call, or leaves it others."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnbench.attention.torch_internals import OperationMode
from attnbench.invariants.caches.program import most_rows
from attnbench.invariants.caches.seen_tokens import (
    ALONE,
    Replay,
    behind_more,
    changed_places,
    changed_tokens,
    moves,
    one_output,
    sights_of,
)
from attnbench.invariants.caches.stage import FoundError, Stage
from attnbench.invariants.toolkit.layer_calls import listed
from attnbench.invariants.toolkit.other_operations import hides
from attnbench.subject.tracing import line_of, name_of

HIDES, SHOWS = "with them shown it is right", "with them hidden it is right"
BOTH = "with them exchanged it is right"
"""What is told of keys that a token should see, or should not."""

_HIDDEN, _LEAST = -50.0, 1e-4


class _Masks(OperationMode):
    """Notes scores that an operation hides some of, and their columns that the last rows see.

    Args:
        number, row, shown: the operation of which a row, from the end, is shown other columns.
    """

    def __init__(self, number: int = -1, row: int = -1, shown: Tensor | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has not typed it
        self.number, self.row, self.shown = number, row, shown
        self.lines: list[str] = []
        self.scores: list[Tensor] = []
        self.seen: list[Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        scores = _scores(name_of(func).rstrip("_"), args)
        scores = None if scores is None else scores.clone()
        result = func(*args, **(kwargs or {}))
        if scores is None or result.dim() < 2 or not (line := line_of(func)):
            return result
        scores = scores.expand_as(result)
        if self.shown is not None and len(self.lines) == self.number:
            own = result[..., self.row, :]
            own.copy_(scores[..., self.row, :].masked_fill(~self.shown, -torch.inf))
        self.lines.append(line)
        self.scores.append(scores)
        self.seen.append(result > _HIDDEN + scores)
        return result


def _scores(name: str, args: Any) -> Tensor | None:
    """The scores of which an operation hides some; ``None`` if it does nothing of the kind."""
    match name, args:
        case ("masked_fill", (Tensor() as scores, Tensor(dtype=torch.bool), value)) | (
            "index_put",
            (Tensor() as scores, [Tensor(dtype=torch.bool)], value),
        ) if hides(value):
            return scores
        case "where", (Tensor(dtype=torch.bool), *both):
            shown = [t for t in both if isinstance(t, Tensor) and t.numel() > 1]
            return shown[0] if len(shown) == 1 and any(map(hides, both)) else None
        case "add", (Tensor() as one, Tensor() as two, *_):
            masks = [bool(((t == 0) | (t < _HIDDEN)).all() and (t < _HIDDEN).any()) for t in args]
            return (one if masks[1] else two) if sum(masks) == 1 else None
    return None


def hidden_keys(judged: str, stage: Stage, found: FoundError) -> str:
    """A sentence on the operation that hides what should be seen; with it changed, all is right."""
    sights = sights_of(stage, judged, found)
    if sights and sights.in_calls == sights.in_one and (more := behind_more(stage, judged, found)):
        found, sights = more, sights_of(stage, judged, more)
    if sights is None or sights.in_calls.elsewhere or not (track := sights.first.track):
        return ""
    mine, right = set(sights.in_calls.slots), set(sights.in_one.slots)
    (row, back, _), base = found.place, _Masks()
    last_call_within(stage, judged, found, base)
    owners: list[dict[int, Tensor]] = [{} for _ in base.lines]  # the columns that are of a token
    for other in changed_tokens(stage, most_rows(found.steps), sights.first.columns):
        again = _Masks()
        replay = last_call_within(other, judged, found, again)
        assert replay.track is not None
        slots, own = changed_places(replay.track.seen, track.seen, row)
        if own and again.lines == base.lines:
            for columns, one, two in zip(owners, base.scores, again.scores, strict=True):
                columns[slots[0]] = _moved(one, two, back)
    lost, which = right - mine - {sights.place}, (mine ^ right) - {sights.place}
    expected = one_output(stage, track, row, back, judged in ALONE)
    for number, (line, columns) in enumerate(zip(base.lines, owners, strict=True)):
        seen = base.seen[number][..., back, :]
        unowned = sum(c.int() for n, c in columns.items() if n != sights.place) == 0
        if not which or any(int(columns[n].sum()) != 1 for n in which):
            continue
        shown = seen
        for n in which:
            shown = shown | columns[n] if n in lost else shown & ~columns[n]
        for each in (shown, shown | (unowned & ~seen)):  # its own key may be hidden beside
            output = last_call_within(stage, judged, found, _Masks(number, back, each)).output
            if output is not None and not moves(stage, output[row, back], expected):
                pairs = (("hides", lost), ("leaves", which - lost))
                what = " and ".join(f"{how} keys of {_tokens(of)}" for how, of in pairs if of)
                proof = BOTH if lost and lost != which else HIDES if lost else SHOWS
                return f"\n  a mask {what}, which are read: {proof}: {line}"
    return ""


def _tokens(slots: set[int]) -> str:
    return f"token{'s' * (len(slots) > 1)} {listed(sorted(slots))}"


def last_call_within(stage: Stage, judged: str, found: FoundError, mode: OperationMode) -> Replay:
    """A program played again, its last call within a mode."""
    replay = Replay(stage, judged)
    for step in found.steps[:-1]:
        replay.play(step)
    with sdpa_kernel(SDPBackend.MATH), mode:
        replay.play(found.steps[-1])
    return replay


def _moved(one: Tensor, two: Tensor, back: int) -> Tensor:
    """The columns in which scores of a row, from the end, are others."""
    if one.shape != two.shape or one.shape[-2] < -back:
        return torch.zeros(one.shape[-1], dtype=torch.bool)
    gaps = (one - two)[..., back, :].abs().nan_to_num(0.0).reshape(-1, one.shape[-1]).amax(0)
    return gaps > _LEAST * gaps.amax().clamp(min=_LEAST)
