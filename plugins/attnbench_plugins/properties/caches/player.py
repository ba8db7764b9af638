"""Play a program: each step uses a cache, and its output is compared with a single call.

A call with a cache should give the output of one call on the whole sequences. If it does not, the
same chunks are appended to a cache without any other operation. If that gives the same wrong
output, the cause is the cut into calls, not the other operations.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attnbench import AttnbenchError, InvariantViolation
from attnbench.testing import floor_of, raised_text, worst_place
from attnbench_plugins.properties.caches.program import MOST_ROWS, MOST_TRACKS, Step
from attnbench_plugins.properties.caches.properties import PROPERTIES
from attnbench_plugins.properties.caches.stage import TOKENS, FoundError, Stage, Track
from attnbench_plugins.properties.layer_faults import LEFT


class Player:
    """Play one program, and raise :class:`FoundError` if an output is wrong.

    Args:
        stage: stage of the case.
        judged: the checked property, a key of
            :data:`attnbench_plugins.properties.caches.properties.PROPERTIES`. Violations of other
            properties are ignored, except for ``mixed`` and ``split``.
    """

    def __init__(self, stage: Stage, judged: str) -> None:
        self.stage, self.subject, self.judged = stage, stage.subject, judged
        self.module = stage.module()
        lossy = PROPERTIES["split"].invariant in self.subject.exempt
        self._goes_on = lossy and judged in ("owner", "fresh")
        self.tracks: list[Track] = []
        self.program: list[Step] = []
        self.capacity = min(self.subject.capacity, TOKENS)
        self.over = False
        self._next = 0
        self._refused: list[str] = []

    def play(self, step: Step) -> None:
        """Do one step as far as it is legal, unless another property has been violated before."""
        legal = None if self.over else self._legal(step)
        if legal is None:
            return
        step = legal
        self.program.append(step)
        with torch.no_grad():
            try:
                self._play(step)
            except AttnbenchError:
                raise
            except (Exception, SystemExit) as error:
                if self._raises_anyway(step):
                    self.over = True
                    return
                text = f"{raised_text(self.subject, error)}{self._after()}"
                raise FoundError(tuple(self.program), text) from error

    def _legal(self, step: Step) -> Step | None:
        """The step with numbers that are legal here; ``None`` if there are none."""
        full = len(self.tracks) >= MOST_TRACKS
        if step.kind == "begin":
            count = min(max(1, step.count), MOST_ROWS)
            pads = (*step.rows, *[0] * count)[:count]
            begun = replace(step, count=count, rows=pads if any(pads) else ())
            return None if full else begun
        if step.kind == "without":
            count = min(step.count, self.capacity)
            return replace(step, count=count) if self.tracks and count else None
        if step.track >= len(self.tracks):
            return None
        rows, length = self.tracks[step.track].seen.shape[:2]
        if step.kind == "append":
            count = max(0, min(step.count, self.capacity - length))
            own = tuple(min(n, count) for n in (*step.rows, *[count] * rows)[:rows])
            ragged = bool(step.rows) and set(own) != {count}
            return replace(step, count=count, rows=own if ragged else ()) if count else None
        if step.kind == "select":
            chosen = tuple(row for row in step.rows if row < rows)[:MOST_ROWS]
            return replace(step, rows=chosen) if chosen else None
        if step.kind == "crop":
            kept = step.count if step.count >= 0 else max(0, length + step.count)
            return replace(step, count=min(kept, length))
        return None if full else step

    def _raises_anyway(self, step: Step) -> bool:
        """Whether the same calls also raise without the operations of the property."""
        if step.kind != "append":
            return False
        track = self.tracks[step.track]
        if track.pads and LEFT not in self.subject.laws:
            return True  # it promises nothing, and refuses
        if self.judged in ("split", "mixed"):
            return False
        mask = None if self.judged in ("alone", "ragged") else track.mask
        return self.judged == "ledger" or self.twin(track, track.seen, mask) is None

    def _after(self) -> str:
        refused = ", ".join(self._refused)
        remark = f"\n  {refused} was refused, which should leave the cache as it was"
        return remark if refused else ""

    def _play(self, step: Step) -> None:
        if step.kind == "begin":
            number, seen = len(self.tracks), self.stage.tokens[: step.count, :0]
            cache = self.subject.new_cache(self.module, step.count)
            masked = bool(step.rows) or self.judged == "ragged"
            mask = torch.ones(step.count, 0, dtype=torch.bool, device=seen.device)
            self.tracks.append(Track(number, cache, seen, step.rows, mask=mask if masked else None))
            return
        if step.kind == "without":
            self._without(step)
            return
        track = self.tracks[step.track]
        if step.kind == "append":
            self._append(step, track)
        elif step.kind == "fork":
            cache, cuts = copy.deepcopy(track.cache), list(track.cuts)
            number = len(self.tracks)
            self.tracks.append(Track(number, cache, track.seen, track.pads, cuts, mask=track.mask))
        else:
            self._operate(step, track)
        if self.judged == "ledger":
            self._count(track)

    def _chunk(self, rows: int, count: int) -> Tensor:
        """The next tokens, ``(rows, count, E)``, different in each row."""
        if self._next + count > TOKENS:
            self._next = 0
        start, self._next = self._next, self._next + count
        return self.stage.tokens[:rows, start : start + count].clone()

    def _append(self, step: Step, track: Track) -> None:
        hidden = self._chunk(track.seen.shape[0], step.count)
        if track.mask is not None:
            track.mask = torch.cat([track.mask, track.next_real(step.count, step.rows)], 1)
        track.seen = torch.cat([track.seen, hidden], 1)
        track.cuts.append(step.count)
        given = hidden.clone()
        got, track.cache = self.subject.call(self.module, hidden, track.mask, track.cache)
        if self.judged == "split" and not torch.equal(hidden, given):
            message = f"a call with a cache on {step.count} tokens changed hidden"
            raise FoundError(tuple(self.program), f"{message}, but should leave it as it is")
        if self.judged in ("alone", "ragged"):
            self._judge_alone(track, got)
        elif self.judged != "ledger":
            self._judge(track, got)

    def _operate(self, step: Step, track: Track) -> None:
        """Select rows of a cache, or crop it; either may be refused."""
        index = torch.tensor(step.rows, dtype=torch.int64, device=track.seen.device)
        try:
            if step.kind == "select":
                track.cache = self.subject.select(track.cache, index)
            else:
                track.cache = self.subject.crop(track.cache, step.count)
        except NotImplementedError:
            self._refused.append(str(step))
            return
        if step.kind == "select":
            track.keep_rows(index)
        else:
            track.keep_slots(step.count)

    def _without(self, step: Step) -> None:
        hidden = self._chunk(2, step.count)
        got = self.stage.one_call(self.module, hidden)
        expected = self.stage.expected(hidden, anew=True)
        real = torch.ones(got.shape, dtype=torch.bool)
        what, other = "the output of the call without a cache", "the same call on a new module"
        rounding = self.stage.rounding
        self._compare(got, expected, lambda: rounding(hidden), real, what, other)

    def _count(self, track: Track) -> None:
        spec = self.subject.spec.cache
        assert spec is not None
        assert spec.length is not None
        given, held = spec.length(track.cache), track.seen.shape[1]
        if type(given) is not int or given != held:
            raise FoundError(
                tuple(self.program),
                f"length(cache) = {given!r}, but should be {held}: the slots appended and not "
                f"cropped{self._after()}",
            )

    def _judge(self, track: Track, got: Tensor) -> None:
        """Hold an output, of calls that are cut all so far, against one call on the sequences."""
        if self.judged == "split":
            track.outputs.append(got)
            got = torch.cat(track.outputs, 1)
        count = got.shape[1]
        expected = self.stage.expected(track.seen, track.mask)[:, -count:]
        real = track.real[:, -count:].unsqueeze(-1)
        floor = floor_of(self.subject, expected)
        if worst_place(got, expected, floor, real) is None:
            return
        fresh = self.stage.expected(track.seen, track.mask, anew=True)[:, -count:]
        if worst_place(got, fresh, floor, real) is None:
            return

        def allowed() -> Tensor:
            return self.stage.rounding(track.seen, track.mask)[:, -count:]

        other = "one call on the same sequences"
        if self.judged not in ("split", "mixed"):
            twin = self.twin(track, track.seen, track.mask)
            if twin is None or worst_place(got, twin, allowed(), real) is None:
                # the cut into calls matters, not the operations: allowed where it is declared
                self.over = twin is None or not self._goes_on
                return
            if worst_place(twin, fresh, allowed(), real) is not None:
                fresh, other = twin, "another cache that was given the same chunks"
        self._compare(got, fresh, allowed, real, "output", other)

    def twin(self, track: Track, seen: Tensor, mask: Tensor | None) -> Tensor | None:
        """The last output of the same chunks through a cache to which nothing else was done."""
        module, start = self.stage.module(), 0
        output = None
        try:
            cache = self.subject.new_cache(module, seen.shape[0])
            for cut in track.cuts:
                end = start + cut
                part = None if mask is None else mask[:, :end]
                output, cache = self.subject.call(module, seen[:, start:end], part, cache)
                start = end
        except Exception:  # reported by the property on cuts
            return None
        return output

    def _judge_alone(self, track: Track, got: Tensor) -> None:
        """Hold each row of a padded batch against the row alone, without padding."""
        count = got.shape[1]
        for row, own_mask in enumerate(track.real):
            own = track.seen[row : row + 1, own_mask]
            slots = own_mask[-count:].nonzero().flatten().tolist()
            new = len(slots)
            if not new:
                continue  # a row without a new token is compared with nothing
            expected = self.stage.expected(own)[:, -new:]
            mine = got[row : row + 1, slots]
            real = torch.ones(mine.shape, dtype=torch.bool)
            if worst_place(mine, expected, floor_of(self.subject, expected), real) is None:
                continue
            expected = self.stage.expected(own, anew=True)[:, -new:]
            allowed = self.stage.rounding(own)[:, -new:]
            if worst_place(mine, expected, allowed, real) is None:
                continue
            if self.judged == "alone":
                whole = self.stage.expected(track.seen, track.mask, anew=True)[:, -count:]
                whole = whole[row : row + 1, slots]
                if worst_place(whole, expected, allowed, real) is not None:
                    self.over = True  # without a cache it is wrong, too
                    return
            given = f"output of row {row}", "the row alone, without padding"
            self._compare(mine, expected, lambda allowed=allowed: allowed, real, *given)

    def _compare(
        self, got: Tensor, expected: Tensor, allowed: Any, real: Tensor, what: str, other: str
    ) -> None:
        if worst_place(got, expected, floor_of(self.subject, expected), real) is None:
            return
        limits = allowed().expand(got.shape)
        place = worst_place(got, expected, limits, real)
        if place is None:
            return
        one, two, tolerance = (float(each[place]) for each in (got, expected, limits))
        wrong: dict[str, Any] = {"got": one, "expected": two, "other": other, "allowed": tolerance}
        wrong["error"] = abs(one - two) / tolerance if tolerance else None
        raise FoundError(
            tuple(self.program),
            f"{InvariantViolation(quantity=what, place=place, **wrong)}{self._after()}",
            quantity="output",
            place=place,
            compared={"got": got, "expected": expected},
            **wrong,
        )
