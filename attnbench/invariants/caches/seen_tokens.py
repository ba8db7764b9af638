"""The tokens that a wrong output depends on, beside those that it should depend on.

The failing program is played again, each time with one other token. What its last output then does
tells whether a mask, a window, padding or a crop is wrong, or only positions and weights.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.invariants.caches.attribution import played
from attnbench.invariants.caches.player import Player
from attnbench.invariants.caches.program import most_rows, steps, with_more_padding
from attnbench.invariants.caches.stage import FoundError, Stage, Track
from attnbench.invariants.toolkit.layer_calls import listed
from attnbench.invariants.toolkit.layer_rounding import floor_of
from attnbench.subject.layer import SOURCE, LayerSubject

ALONE = ("alone", "ragged")
"""The properties that hold a row against itself alone, without padding."""

_MOST = 96
"""Most tokens of a program of which each is changed once."""


UNTOLD = ": the weights, positions or order of tokens are wrong"
"""What may be wrong with tokens that are seen, where no small change tells."""

OTHER_ROW = "another row of the batch"
"""What an output depends on that reads tokens of another row."""

SEES = "what it sees is wrong"
"""What is told of an output that depends on other tokens than in one call."""


class Replay(Player):
    """Plays a program, judges nothing, and keeps the last output and its sequence."""

    def __init__(self, stage: Stage, judged: str) -> None:
        super().__init__(stage, judged)
        self.output: Tensor | None = None
        self.track: Track | None = None
        self.columns = 0

    def chunk(self, rows: int, count: int) -> Tensor:
        """The next tokens, whose number of columns is kept."""
        found = super().chunk(rows, count)
        self.columns = max(self.columns, self._next)
        return found

    def _judge(self, track: Track, got: Tensor) -> None:
        if self.judged == "split":
            track.outputs.append(got)
            got = torch.cat(track.outputs, 1)
        self.output, self.track = got, track

    _judge_alone = _judge


@dataclass
class _Sight:
    """What an output depends on: slots of its sequence, and whether also something else."""

    slots: list[int]
    elsewhere: str = ""

    def __str__(self) -> str:
        found = [f"token{'s' * (len(self.slots) > 1)} {listed(self.slots)}"] if self.slots else []
        return " and ".join([*found, *filter(None, [self.elsewhere])]) or "no token"


@dataclass
class _Sights:
    """What a wrong output depends on: in the calls of a program, and in one call."""

    first: Replay
    row: int
    place: int
    padded: list[int]
    in_calls: _Sight
    in_one: _Sight


def seen_tokens(stage: Stage, judged: str, found: FoundError) -> str:
    """A sentence on what the wrong output depends on; empty if that cannot be told.

    Args:
        stage, judged, found: what a program found.
    """
    sights, cut = sights_of(stage, judged, found), ""
    if sights is None:
        return ""
    if of_source := _of_source(stage, judged, found, sights.first):
        return f"\n  token {sights.place} depends on {of_source}"
    if sights.in_calls == sights.in_one and (longer := behind_more(stage, judged, found)):
        more = sights_of(stage, judged, longer)
        is_later = len(longer.steps) > 2  # else its first call is wrong already
        if is_later and more is not None and more.in_calls != more.in_one:
            sights, cut = more, f"cut as {longer.steps[1].count} + {longer.steps[2].count}, "
    where = "alone" if judged in ALONE else "in one call"
    return f"\n  {cut}token {sights.place} depends on " + (
        f"{sights.in_one} in both, {_unseen(stage, judged, found)}"
        if sights.in_calls == sights.in_one
        else f"{sights.in_calls}{_padding(sights)}; {where} it depends on "
        f"{sights.in_one}: {_blame(stage, sights)}"
    )


def _blame(stage: Stage, sights: _Sights) -> str:
    """Which set of tokens is wrong: that of one call, if only it leaves out some between."""
    many, few = set(sights.in_calls.slots), set(sights.in_one.slots)
    holes, gaps = (
        len(slots) <= max(slots, default=0) - min(slots, default=0) for slots in (many, few)
    )
    if few < many and gaps and not holes and not sights.in_calls.elsewhere:
        return "the one call leaves out tokens between them, and may be what is wrong"
    return f"{_behind_the_last(stage, sights)}{SEES}"


def _behind_the_last(stage: Stage, sights: _Sights) -> str:
    """What shows that a token sees no further back than the last one of its call."""
    track, output, row = sights.first.track, sights.first.output, sights.row
    assert track is not None
    assert output is not None
    later, own = track.seen.shape[1] - 1 - sights.place, sights.in_one.slots
    is_run = own == [*range(own[0], own[-1] + 1)] and not sights.in_calls.elsewhere
    if not 0 < later < track.cuts[-1] or not is_run or sights.in_calls.slots != own[later:]:
        return ""
    others = copy.copy(track)
    others.seen = track.seen.clone()
    others.seen[row, own[:later]] *= -2
    last, unseen = (one_output(stage, one, row, -1) for one in (track, others))
    is_right = not moves(stage, output[row, -1], last) and not moves(stage, unseen, last)
    return "as far back as the last token of its call, which is right, and no further: " * is_right


def sights_of(stage: Stage, judged: str, found: FoundError) -> _Sights | None:
    """What the wrong output depends on; ``None`` if that cannot be told."""
    if not found.place or found.steps[-1].kind != "append":
        return None
    first = _replayed(stage, judged, found)
    if first is None or first.output is None or first.track is None:
        return None
    track, (row, back, _) = first.track, found.place
    length, rows = track.seen.shape[1], most_rows(found.steps)
    if rows * first.columns > _MOST or row >= track.seen.shape[0] or -back > length:
        return None
    padded = (~track.real[row]).nonzero().flatten().tolist()
    alone = judged in ALONE
    in_calls, in_one = _Sight([]), _Sight([])
    for changed in changed_tokens(stage, rows, first.columns):
        other = _replayed(changed, judged, found)
        if other is None or other.output is None or other.track is None:
            return None
        slots, own = changed_places(other.track.seen, track.seen, row)
        if moves(stage, other.output[row, back], first.output[row, back]):
            if own:
                in_calls.slots += slots
            else:
                in_calls.elsewhere = _elsewhere(found, bool(slots))
        if own and not (alone and slots[0] in padded):
            before, after = (one_output(stage, t, row, back, alone) for t in (track, other.track))
            if moves(stage, after, before):
                in_one.slots += slots
    return _Sights(first, row, length + back, padded, in_calls, in_one) if in_one.slots else None


def behind_more(stage: Stage, judged: str, found: FoundError) -> FoundError | None:
    """The error of a last call behind three tokens, where the program has fewer before it.

    An output depends on its own token also where that is hidden from it as a key.
    """
    begin, *rest = found.steps
    plain = all(step.kind == "append" and not step.track and not step.rows for step in rest)
    if judged != "split" or begin.rows or not plain or sum(step.count for step in rest[:-1]) > 2:
        return None
    return played(stage, judged, steps(begin.count, 3, rest[-1].count))


def _padding(sights: _Sights) -> str:
    padded = [slot for slot in sights.in_calls.slots if slot in sights.padded]
    return f" (padding: {listed(padded)})" if padded else ""


def _replayed(stage: Stage, judged: str, found: FoundError) -> Replay | None:
    replay = Replay(stage, judged)
    try:
        for step in found.steps:
            replay.play(step)
    except Exception:  # other numbers may lead elsewhere
        return None
    return replay


def changed_tokens(stage: Stage, rows: int, columns: int) -> Iterator[Stage]:
    """Yield the stage with one other token each time."""
    generator = torch.Generator().manual_seed(stage.case.seed + 1)
    for row in range(rows):
        for column in range(columns):
            other = copy.copy(stage)
            other.tokens = stage.tokens.clone()
            drawn = torch.randn(stage.tokens.shape[-1:], generator=generator, dtype=torch.float64)
            other.tokens[row, column] = drawn.to(other.tokens)
            yield other


def changed_places(now: Tensor, before: Tensor, row: int) -> tuple[list[int], bool]:
    """The slots of a sequence that are other now, and whether they are of the row itself."""
    differs = (now != before).any(-1)
    own = differs[row].nonzero().flatten().tolist()
    return (own, True) if own else (differs.any(0).nonzero().flatten().tolist(), False)


def one_output(stage: Stage, track: Track, row: int, back: int, alone: bool = False) -> Tensor:
    """An output of a row in one call without a cache, in the batch or without it and padding."""
    if not alone:
        return stage.one_call(stage.module(), track.seen, track.mask)[row, back]
    real, length = track.real[row], track.seen.shape[1]
    output = stage.one_call(stage.module(), track.seen[row : row + 1, real])
    return output[0, int(real[: length + back].sum())]


def moves(stage: Stage, now: Tensor, before: Tensor) -> bool:
    """Whether a change of other tokens moves an output."""
    gap = (now.double() - before.double()).abs().nan_to_num(float("inf")).amax()
    return float(gap) > floor_of(stage.subject, before)


def _elsewhere(found: FoundError, another_row: bool) -> str:
    kinds = [step.kind for step in found.steps]
    if another_row:
        return OTHER_ROW
    if kinds.count("begin") + kinds.count("fork") == 1 and "crop" in kinds:
        return "a token that had been cropped"
    return "a token that is not of its sequence"


def _of_source(stage: Stage, judged: str, found: FoundError, first: Replay) -> str:
    """What an output depends on of the source, where that differs; empty without a source."""
    if "source" not in stage.subject.accepts or not found.place:
        return ""
    row, back, _ = found.place
    in_calls, in_one = _Sight([]), _Sight([])
    for token in range(SOURCE):
        other = copy.copy(stage)
        other.subject = _with_source_token(stage.subject, token)
        again = _replayed(other, judged, found)
        if again is None or again.output is None or first.output is None or first.track is None:
            return ""
        if moves(stage, again.output[row, back], first.output[row, back]):
            in_calls.slots.append(token)
        before, after = (one_output(s, first.track, row, back) for s in (stage, other))
        if moves(stage, after, before):
            in_one.slots.append(token)
    text = f"{in_calls} of the source; in one call on {in_one} of it: what it sees of it is wrong"
    return "" if in_calls == in_one else text


def _with_source_token(subject: LayerSubject, token: int) -> LayerSubject:
    """The same layer, called with another number at one token of the source."""
    other = copy.copy(subject)

    def call(module: nn.Module, hidden: Tensor, *more: Any) -> tuple[Tensor, Any]:
        source = subject.beside(hidden)["source"]
        source[:, token] *= -2
        return subject.call(module, hidden, *more, source=source)

    object.__setattr__(other, "call", call)
    return other


def _unseen(stage: Stage, judged: str, found: FoundError) -> str:
    """What shows of an output that depends on the tokens that it should depend on."""
    if judged in ALONE and _padding_counts(stage, judged, found):
        return "and how many padded slots there are counts, not what they hold"
    alike = copy.copy(stage)
    alike.tokens = stage.tokens[:1, :1].expand_as(stage.tokens).contiguous()
    if played(alike, judged, found.steps) is not None:
        return "and even with equal tokens everywhere it is wrong"
    return f"and with equal tokens everywhere it is right{UNTOLD}"


def _padding_counts(stage: Stage, judged: str, found: FoundError) -> bool:
    """Whether the wrong output is another one where each row has one more padded slot."""
    if (padded := with_more_padding(found.steps)) is None or not found.place:
        return False
    (program, column), other, (row, back, _) = padded, copy.copy(stage), found.place
    other.tokens = torch.cat([stage.tokens[:, :column], stage.tokens[:, column - 1 :]], 1)
    both = _replayed(stage, judged, found), _replayed(other, judged, FoundError(program, ""))
    outputs = [one.output[row, back] for one in both if one and one.output is not None]
    return len(outputs) == len(both) and moves(stage, *outputs)
