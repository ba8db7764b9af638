"""Invariants on dropout over many calls: the mean, and independence of the dropped weights."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import (
    STANDARD_ERRORS,
    agree_within,
    any_of,
    declares,
    hand_picked,
    holds,
    reject,
)
from attnbench_plugins.properties import invariant
from attnbench_plugins.properties.dropout import takes_dropout

_CALLS = 4096
_SHARE = 0.3
"""Told from the share of the weights kept."""

_RARE = 0.002
"""So few that a share in steps of 1/256 is far off, or nothing."""

_MANY = 64
"""Keys, of which some are dropped even so."""
_CASES = (
    Case((), 3, 5, 4, 4, 4),
    Case((), 2, 4, 6, 6, 3, mask="boolean_shared", seed=1),
    Case((), 3, 1, 4, 4, 4, seed=2),
)


def _in_training(subject: Subject, case: Case, dropout_p: float, times: int = 1) -> list[Tensor]:
    """Outputs ``(calls, L, Ev)`` of one item given many times over as a batch, some times."""
    module, inputs = subject.build(case.replace(lead=()))
    if case.kv_len >= _MANY:  # what is lost adds up
        inputs = inputs.replace(value=torch.ones_like(inputs.value))
    many = inputs.map(lambda tensor: tensor.expand(_CALLS, *tensor.shape))
    torch.manual_seed(case.seed)
    with torch.no_grad():
        given = many.replace(dropout_p=dropout_p)
        return [subject.output(module.train(), given).double() for _ in range(times)]


def _rare_too(subject: Subject) -> CaseStrategy:
    usual = [subject.legal(case) for case in _CASES]
    rare = subject.legal(usual[0].replace(q_len=1, kv_len=_MANY, regime="equal_keys", seed=3))
    return listed(*usual, rare, enough=len(set(usual)))


@invariant(cases=_rare_too, applies=takes_dropout)
def dropout_keeps_the_mean(subject: Subject, case: Case) -> None:
    """The mean of the output over dropouts is the output without dropout.

    Power: a mean off by 12 standard errors, a fifth of one output's spread, is always found.
    """
    share = _RARE if case.kv_len >= _MANY else _SHARE
    if share == _RARE:
        weights = subject.weights(*subject.build(case))
        if weights is None or float(weights.detach().max()) * case.kv_len > 4:
            reject("few weights count, and so few that are dropped say nothing")
    dropped, again = _in_training(subject, case, share, times=2)
    (plain,) = _in_training(subject, case, 0.0)
    if not bool(plain.any()):
        reject("no key is left, so that there is nothing to drop")
    if bool((dropped == plain).all()):
        raise InvariantViolation(
            f"output in training mode with dropout_p={share} = {float(dropped.flatten()[0]):.6g} "
            f"in each of {_CALLS} calls, as with dropout_p=0, but should differ: nothing is dropped"
        )
    if bool((dropped == again).all()):
        raise InvariantViolation(
            f"output of two calls in training mode with dropout_p={share} = "
            f"{float(dropped.flatten()[0]):.6g} and so on, the same in both, but should differ: "
            "what is dropped is drawn anew in each call, by torch's global generator"
        )
    error = ((dropped.var(0) + plain.var(0)) / _CALLS).sqrt()
    allowed = STANDARD_ERRORS * error + 1e-4 * plain.abs().max()
    agree_within(
        dropped.mean(0),
        plain.mean(0),
        allowed,
        f"over {_CALLS} calls in training mode with dropout_p={share}, mean of output",
        "the calls with dropout_p=0",
    )


_shows_dropped_weights = any_of(
    takes_dropout, declares("pools_values", ", so values do not show its weights")
)


@invariant(
    cases=lambda subject: listed(*map(subject.legal, _CASES)), applies=_shows_dropped_weights
)
def dropout_acts_on_weights(subject: Subject, case: Case) -> None:
    """Dropout sets its share of the weights to 0 and rescales the others."""
    case = case.replace(lead=(), value_size=2 * case.kv_len)
    _, inputs = subject.build(case)
    eye = torch.eye(case.kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
    # the output is then the weights that values are pooled by, each of them twice
    inputs = inputs.replace(value=torch.cat([eye, eye], -1))
    many = inputs.map(lambda tensor: tensor.expand(_CALLS // 4, *tensor.shape))
    found = []
    for share in (0.0, _SHARE):
        module, _ = subject.build(case)  # a training call may move its buffers
        torch.manual_seed(case.seed)  # what the scores themselves drop is the same in both
        found.append(subject.output(module.train(), many.replace(dropout_p=share)).double())
    weights, dropped = found
    rescaled = weights / (1 - _SHARE)
    tolerance = 64 * subject.eps(inputs.query.dtype)
    kept = (dropped - rescaled).abs() <= tolerance
    what = f"in training mode with dropout_p={_SHARE}, weight"
    holds(
        kept | (dropped.abs() <= tolerance),
        what,
        dropped,
        f"0 or the weight over 1 - {_SHARE}: dropout acts on weights after the softmax",
    )
    once, again = dropped.chunk(2, -1)
    agree_within(
        once, again, tolerance, f"{what} as one feature of the value shows it", "another feature"
    )
    large = weights > 4 * tolerance
    share = float((dropped == 0)[large].double().mean())
    allowed = STANDARD_ERRORS * (_SHARE * (1 - _SHARE) / int(large.sum())) ** 0.5
    if abs(share - _SHARE) > allowed:
        raise InvariantViolation(
            f"the share of weights dropped in training mode = {share:.4f}, but should be "
            f"dropout_p = {_SHARE} ± {allowed:.2g}"
        )


@invariant(cases=hand_picked(*_CASES, heads=("grouped", "own")), applies=takes_dropout)
def dropout_is_independent(subject: Subject, case: Case) -> None:
    """What dropout takes from one query and head is independent of what it takes from another.

    Power: rows of one item that lose the same weights are correlated by a half and more.
    """
    module, inputs = subject.build(case.replace(lead=()))
    count = _CALLS // 4
    many = inputs.map(lambda tensor: tensor.expand(count, 2, *tensor.shape))
    remark = ""
    # both heads are of one group
    if "enable_gqa" in subject.accepts and case.variant("heads", "grouped") == "grouped":
        key, value = many.key[:, :1], many.value[:, :1]
        many, remark = many.replace(key=key, value=value, enable_gqa=True), ", enable_gqa=True"
    torch.manual_seed(case.seed)
    with torch.no_grad():
        dropped = subject.output(module.train(), many.replace(dropout_p=_SHARE)).double()
    if "all_rows_are_equal" in subject.laws:
        dropped = dropped[:, :, :1]  # they are one row
    way = torch.randn(dropped.shape[-1], dtype=torch.float64).to(dropped)
    # (calls, 2 · L): two heads of the same item, and the rows of each
    moved = (dropped @ way).flatten(1)
    moved = moved - moved.mean(0)
    varies = moved.square().mean(0).sqrt() > 1e-3 * (dropped.abs().max() + 1e-30)
    moved = moved[:, varies] / moved[:, varies].square().mean(0).sqrt()
    together = (moved.T @ moved / count).fill_diagonal_(0.0).abs()
    if together.shape[0] < 2:
        reject("dropout moves fewer than two rows")
    allowed = STANDARD_ERRORS / count**0.5
    if float(together.max()) > allowed:
        worst = divmod(int(together.argmax()), together.shape[1])
        rows = [divmod(int(varies.nonzero()[i]), dropped.shape[-2]) for i in worst]
        (head, row), (other, last) = rows
        raise InvariantViolation(
            f"over {count} calls in training mode with dropout_p={_SHARE}{remark}, the correlation "
            f"of output[:, {head}, {row}] and output[:, {other}, {last}] = "
            f"{float(together.max()):.3f}, but should be 0 ± {allowed:.2g}: every weight is "
            "dropped by itself, not with those of another query or head"
        )


def _drops_many_weights(subject: Subject) -> str | None:
    if "all_rows_are_equal" in subject.laws:
        return "all rows are equal, also in what they lose"
    try:
        weights = subject.weights(*subject.build(_long_case(subject)))
    except Exception:  # the check will meet it, and tell of it
        return None
    if weights is not None and bool((weights == 0).any()):
        return "some keys that no mask hides have no weight"
    return None


@invariant(
    cases=lambda subject: listed(_long_case(subject)),
    applies=any_of(_shows_dropped_weights, _drops_many_weights),
)
def dropout_differs_between_blocks(subject: Subject, case: Case) -> None:
    """Dropout does not take the same weights from two queries, nor from two keys."""
    module, inputs = subject.build(case)
    eye = torch.eye(case.kv_len, dtype=inputs.query.dtype, device=inputs.query.device)
    torch.manual_seed(case.seed)
    given = inputs.replace(value=eye, dropout_p=_SHARE)
    lost = subject.output(module.train(), given) == 0
    for what, rows in (("queries", lost), ("keys", lost.mT)):
        kinds, which = torch.unique(rows, dim=0, return_inverse=True)
        if len(kinds) < len(rows) and rows.shape[-1] > _MANY:  # by chance once in 2⁹⁰
            first = int((which.bincount(minlength=len(kinds)) > 1).nonzero()[0])
            same = (which == first).nonzero().flatten().tolist()
            raise InvariantViolation(
                f"in training mode with dropout_p={_SHARE}, the {rows.shape[-1]} weights of {what} "
                f"{same[0]} and {same[1]} are dropped alike, but should not be: each weight is "
                "dropped by itself"
            )


def _long_case(subject: Subject) -> Case:
    """More queries and keys than a kernel's blocks, and as many values as keys."""
    case = subject.legal(Case((), 300, 270, 4, 4, 270))
    return subject.legal(case.replace(value_size=case.kv_len))
