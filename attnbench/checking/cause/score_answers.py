"""Mistakes of scores and weights that a subject's own answers show, without any mask."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.checking.cause.instead import Instead
from attnbench.oracle.textbook import is_textbook, stages_of, textbook_output
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

CASE = Case((3,), 4, 6, 8, 8, 8)
MARGIN = 1e-3
_ROUNDING = 1e-14
_HUGE, _STEEP = 150.0, 100.0
_USUAL, _LARGE = 1.0, 320.0
"""Entries whose squares float16 can hold, and such whose squares it cannot."""
_HALF_MARGIN = 4e-2
_ROOM, _TIMES = 4, 8
"""Units that scores may be off by, and how many times the others, where numbers are rounded."""


def wrong_axis(subject: Subject) -> str | None:
    """The mistake of weights that sum to 1, but not over the keys; also where lengths are given."""
    for case in (CASE, CASE.replace(lead=(2, 3)), CASE.replace(mask="padding")):
        module, inputs = subject.build(subject.legal(case))
        if case.mask != "none":
            if inputs.valid_lens is None:
                return None
            inputs = inputs.replace(valid_lens=inputs.valid_lens * 0 + inputs.key.shape[-2])
        weights = subject.weights(module, inputs)
        if weights is None:
            is_one = _reads_with_others_alone(subject, module, inputs, case)
            return "softmax_over_the_queries" if is_one else None  # one query alone has weights 1
        if weights.shape[-1] > 1 and "weights_sum_to_one" not in subject.exempt:
            calls = (inputs.replace(query=inputs.query * by) for by in (1, _STEEP, -_STEEP))
            if all(_are_one(subject.weights(module, call)) for call in calls):
                return "softmax_over_one"
        *others, keys = [
            size > 1 and bool(((weights.sum(axis) - 1).abs() < MARGIN).all())
            for axis, size in enumerate(weights.shape)
        ]
        if any(others) and not keys:
            axis = len(others) - 1 - others[::-1].index(True)
            return "softmax_over_the_queries" if others[-1] else f"softmax_over_dimension_{axis}"
    return None


def _reads_with_others_alone(
    subject: Subject, module: nn.Module, inputs: Inputs, case: Case
) -> bool:
    """Whether queries read keys, but one query alone does not, which may read all of them."""
    one = subject.legal(case).replace(q_len=1)
    if subject.conventions.causal == "always" or subject.legal(case.replace(q_len=1)) != one:
        return False
    alone = inputs.replace(query=inputs.query[..., :1, :])
    return _reads_keys(subject, module, inputs) and not _reads_keys(subject, module, alone)


def _reads_keys(subject: Subject, module: nn.Module, inputs: Inputs) -> bool:
    """Whether the output changes with the keys."""
    calls = (inputs, inputs.replace(key=inputs.key * -2))
    return not agrees(*(subject.output(module, call) for call in calls))


def _are_one(weights: Tensor | None) -> bool:
    return weights is not None and bool((weights == 1).all())


def short_sums(subject: Subject) -> str | None:
    """The mistake of rows that sum to a little less than 1 in any call, as of a softmax."""
    module, inputs = subject.build(subject.legal(CASE).replace(dtype="float64"))
    weights = subject.weights(module, inputs)
    missing = torch.zeros(()) if weights is None else 1 - weights.sum(-1)
    missing = missing if inputs.query.dtype == torch.float64 else torch.zeros(())
    short = bool(((missing > _ROUNDING) & (missing < MARGIN)).all())
    return "sum_with_epsilon" if short else None


def counted_keys(subject: Subject) -> str | None:
    """The mistake of lengths that leave the right keys, where the number of the others counts.

    With fewer keys the queries stand elsewhere, so that nothing is told where the order of the keys
    counts, whether it is declared or not.
    """
    if subject.conventions.positions != "none":
        return None
    module, inputs = subject.build(subject.legal(CASE.replace(mask="padding")))
    if inputs.valid_lens is None:
        return None
    count, total = 3, inputs.key.shape[-2]
    inputs = inputs.replace(valid_lens=inputs.valid_lens * 0 + count)
    few = inputs.replace(key=inputs.key[..., :count, :], value=inputs.value[..., :count, :])
    output = subject.output(module, inputs)

    def moves(slot: int) -> bool:
        other = inputs.map(torch.clone)
        for tensor in (other.key, other.value):
            tensor[..., slot, :] *= -2
        return not agrees(subject.output(module, other), output)

    order = torch.tensor([*reversed(range(count)), *range(count, total)])
    turned = inputs.replace(key=inputs.key[..., order, :], value=inputs.value[..., order, :])
    if not agrees(subject.output(module, turned), output):
        return None
    is_same = agrees(subject.output(module, few), output)
    sees = [moves(slot) for slot in range(0 if is_same else total)]
    return "hidden_keys_counted" if sees and sees == [s < count for s in range(total)] else None


def wrong_maximum(subject: Subject) -> str | None:
    """The mistake of a largest score that is not subtracted, or is not that of the row alone.

    One query has scores whose powers no float32 holds, or the same far below zero for all keys; the
    others stay as they were.
    """
    module, inputs = subject.build(subject.legal(CASE.replace(lead=(2, 3))))
    if inputs.query.dtype != torch.float32 or not is_textbook(subject):
        return None
    scores = stages_of(inputs).scores
    query, first = inputs.query.clone(), scores[0, 0, 0]
    query[0, 0, 0] *= _HUGE / float(first[first.abs().argmax()])
    given = inputs.replace(query=query)
    output, expected = subject.output(module, given), textbook_output(given)
    wrong = ~((output - expected).abs() <= MARGIN * expected.abs().amax()).all(-1)
    if not agrees(subject.output(module, inputs), textbook_output(inputs)):
        return None
    if not bool(wrong.any()):
        below = torch.full((scores.shape[-1], 1), -_HUGE * query.shape[-1] ** 0.5)
        query = inputs.query.clone()
        query[0, 0, 0] = torch.linalg.lstsq(inputs.key[0, 0], below).solution[:, 0]
        given = inputs.replace(query=query)
        row = subject.output(module, given)[0, 0, 0]
        return "low_scores_lost" if not bool(row.any() and row.isfinite().all()) else None
    if not bool(wrong[0, 0, 0]):
        return "maximum_of_other_rows"
    alone = int(wrong.sum()) == 1 and not bool(output[0, 0, 0].isfinite().all())
    return "powers_overflow" if alone else None


def lost_squares(subject: Subject) -> str | None:
    """The mistake of squares or products that float16 cannot hold, in scores that do not grow with
    what the query and the key hold, as they are normalised.
    """
    answer = subject.output if subject.kind == "mechanism" else subject.scores
    module, inputs = subject.build(subject.legal(CASE).replace(dtype="float16"))
    wide = copy.deepcopy(module).double()

    def results(size: float) -> tuple[Tensor, Tensor]:
        query, key = (size * (t.sign() - t / 8) for t in (inputs.query, inputs.key))
        given = inputs.replace(query=query, key=key)
        found, right = answer(module, given), answer(wide, given.map(Tensor.double))
        if found is None or right is None or found.dtype == right.dtype:
            raise ValueError("it has no scores, or no half types")
        return found.double(), right

    (usual, right), (large, same) = results(_USUAL), results(_LARGE)
    shows = agrees(right, same) and _near_in_half(usual, right) and not _near_in_half(large, same)
    return "squares_overflow" if shows else None


def _near_in_half(output: Tensor, expected: Tensor) -> bool:
    return bool(((output - expected).abs() <= _HALF_MARGIN * expected.abs().amax()).all())


def unplaced_keys(subject: Subject) -> str | None:
    """The mistake of keys that count alike in any order, where the convention says otherwise, or
    whose scores are others at the same distance, though queries and keys are equal.
    """
    if subject.conventions.positions == "none":
        return None
    module, inputs = subject.build(subject.legal(CASE))
    turned = inputs.replace(key=inputs.key.flip(-2), value=inputs.value.flip(-2))
    alike = agrees(subject.output(module, turned), subject.output(module, inputs))
    if alike or subject.conventions.positions == "absolute":
        return "positions_ignored" if alike else None
    module, inputs = subject.build(subject.legal(CASE.replace(q_len=6)))
    query, key = (t[..., :1, :].expand_as(t) for t in (inputs.query, inputs.key))
    weights = subject.weights(module, inputs.replace(query=query, key=key))
    steps = torch.zeros(2, 2) if weights is None else weights.log().diff(dim=-1)
    if not bool(steps.any()) or agrees(steps[..., 1:, 1:], steps[..., :-1, :-1]):
        return None
    return "scores_not_by_distance" if bool(steps.isfinite().all()) else None


def misplaced_scores(subject: Subject) -> str | None:
    """The mistake of scores that should depend on the distance of query and key, but do not, or
    also on how many queries or keys there are. One number for all keys of a row does not count.
    """
    module, inputs = subject.build(subject.legal(CASE.replace(q_len=12, kv_len=12)))
    query, key = inputs.query, inputs.key

    def steps(query: Tensor, key: Tensor) -> Tensor:
        scores = subject.scores(module, inputs.replace(query=query, key=key))
        if scores is None or not bool(scores.isfinite().all()):
            raise ValueError("nothing is told by what is not finite")
        return scores.diff(dim=-1)

    full = steps(query, key)
    for count in (6, 3) if "decode_equals_prefill" not in subject.exempt else ():
        among = full[..., :count, : count - 1]
        alone = steps(query[..., :count, :], key[..., :count, :])
        if (gaps := _gaps(alone, among)).any():
            return _ahead("scores_by_later_count", gaps.tril(-1))
    if "leading_padding_equals_deleting" not in subject.laws:
        return None
    few = query[..., :3, :]
    got, both = steps(few, key), steps(torch.cat([few, query[..., 3:9, :], few], -2), key)
    early, late = both[..., :3, :], both[..., 9:, :]
    if not agrees(got, late):
        return "queries_counted_from_the_first_key" if agrees(got, early) else None
    same = steps(*(t[..., :1, :].expand_as(t) for t in (query, key)))
    if (gaps := _gaps(same[..., 1:, 1:], same[..., :-1, :-1])).any():
        return _ahead("scores_not_by_distance", gaps.tril(-1))
    for count in (6, 4, 3, 2):
        left = min(count, 3)
        fewer = steps(few[..., -left:, :], key[..., -count:, :])
        if (gaps := _gaps(fewer, got[..., -left:, 1 - count :])).any():
            return _ahead("scores_by_count", gaps.tril(count - left - 1))
    return None


def _gaps(one: Tensor, other: Tensor) -> Tensor:
    return (one - other).abs() > MARGIN * other.abs().max()


def _ahead(name: str, behind: Tensor) -> str:
    """A mistake, or that of keys after the query if all is right for those at or before it."""
    return name if bool(behind.any()) else "scores_of_later_keys_shifted"


def rounded_numbers(subject: Subject) -> str | None:
    """The mistake of what a scoring function converts to a half type itself, as positions."""
    case = subject.legal(CASE.replace(q_len=2, kv_len=600)).replace(dtype="bfloat16")
    module, inputs = subject.build(case)
    right = subject.scores(copy.deepcopy(module).double(), inputs.map(Tensor.double))
    got = subject.scores(module, inputs)
    with Instead(torch.bfloat16, torch.float32):
        wide = subject.scores(module, inputs)
    if right is None or got is None or wide is None:
        return None
    off, least = (float((scores.double() - right).abs().max()) for scores in (got, wide))
    room = _ROOM * torch.finfo(got.dtype).eps * float(right.abs().max())
    return "numbers_in_half" if off > max(room, _TIMES * least) else None


def foreign_scores(subject: Subject) -> str | None:
    """The mistake of scores at another place, or that other keys or queries than theirs change."""
    module, inputs = subject.build(subject.legal(CASE))
    query, key = inputs.query, inputs.key

    def scores(query: Tensor, key: Tensor) -> Tensor:
        found = subject.scores(module, inputs.replace(query=query, key=key))
        if found is None or not bool(found.isfinite().all()):
            raise ValueError("nothing is told by what is not finite")
        return found

    def moved(tensor: Tensor, slot: int) -> Tensor:
        other = tensor.clone()
        other[..., slot, :] = 1 - 3 * other[..., slot, :]
        return other

    expected = scores(query, key)
    queries, keys = torch.split(query, 1, -2), torch.split(key, 1, -2)
    rows = [[scores(q, k) for k in keys] for q in queries]
    alone = torch.cat([torch.cat(row, -1) for row in rows], -2)
    gaps = (expected.flatten(-2)[..., :, None] - alone.flatten(-2)[..., None, :]).abs().amin(-1)
    if not agrees(expected, alone) and agrees(expected.flatten(-2) + gaps, expected.flatten(-2)):
        return "scores_at_other_places"
    if not agrees(scores(query, moved(key, -1))[..., :-1], expected[..., :-1]):
        return "scores_of_other_keys"
    if not agrees(scores(moved(query, -1), key)[..., :-1, :], expected[..., :-1, :]):
        return "scores_of_other_queries"
    late = scores(moved(query, 0), key)[..., 1:, :]
    return None if agrees(late, expected[..., 1:, :]) else "scores_of_earlier_queries"


def agrees(output: Tensor, expected: Tensor) -> bool:
    """Whether two outputs are one but for rounding; ``ValueError`` where all is 0."""
    if not bool(expected.any()):
        raise ValueError("nothing is told by zeros")
    margin = max(MARGIN, 8 * torch.finfo(output.dtype).eps)  # of a subject without wide dtypes
    return bool(((output - expected).abs() <= margin * expected.abs().amax()).all())
