"""Invariants on the log-sum-exp of the scores, of mechanisms that return it with the output.

Whoever splits the keys, over blocks, devices or a cached prefix, merges the parts by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Inputs, InvariantViolation, RefusalError, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import (
    Baseline,
    MechanismSubject,
    agree_within,
    allowed_and_bias,
    any_of,
    benign,
    change_by_moves,
    grouped,
    has_no_gradients,
    invariant,
    is_textbook,
    knows_positions,
    largest,
    reject,
    same_gradient,
    select_keys,
    stages_of,
)

_OPTIONS: dict[str, Any] = {"scale": 0.7, "softcap": 0.5, "window_size": (1, 1)}
"""Options that change the scores, or the keys that they are of, and so the log-sum-exp."""

_MOVES = 8
_WIDE = ("float32", "float64")
_UNITS = 64


class _Sums:
    """A mechanism at a case: its outputs, and its log-sums in base e, as they are defined."""

    def __init__(self, subject: Subject, case: Case) -> None:
        assert isinstance(subject, MechanismSubject)
        self.base, self.subject = Baseline(subject, case), subject
        self.unit = math.log(2.0) if subject.conventions.lse_base == "2" else 1.0

    def ask(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        """The output, and the log-sums in base e; -inf in rows without keys."""
        output, lse = self.subject.output_and_log_sums(self.base.module, inputs)
        empty = ~allowed_and_bias(inputs)[0].any(-1).to(lse.device)
        return output, (lse * self.unit).masked_fill(empty, -math.inf)

    def eps(self, lse: Tensor) -> float:
        """One relative unit in the last place of log-sums: of float32 at most, or of the inputs."""
        own = min(torch.finfo(lse.dtype).eps, torch.finfo(torch.float32).eps)
        return max(self.base.eps, own)

    def allowed(self, lse: Tensor, right: Tensor) -> Tensor:
        """What rounding does to log-sums of these sizes, in the dtypes of the inputs and theirs."""
        eps = self.eps(lse)
        sizes = right.detach().double().abs().nan_to_num(0.0, 0.0, 0.0)
        return _UNITS * eps * (1.0 + sizes)


def _returns_textbook(subject: Subject) -> str | None:
    reason = _returns(subject)
    if reason is None and not is_textbook(subject):
        return "its scores are not known: it is not scaled dot-product attention"
    return reason


def _sum_cases(subject: Subject) -> CaseStrategy:
    options = [name for name in _OPTIONS if name in subject.accepts]
    several = ("all",) if len(options) > 1 else ()
    drops = ("dropout",) if "dropout_p" in subject.accepts else ()
    given = ("nothing", *options, *several, *drops)
    masks = ("none", "boolean", "causal", "bias", "empty_row")
    variants = {"given": given} if len(given) > 1 else {}
    heads = ("own", "grouped") if "enable_gqa" in subject.accepts else ("own",)
    beyond = [Case((1, 2), 3, 6).tried(given=kind, heads=heads[-1]) for kind in given[1:]]
    if len(heads) > 1:
        step = Case((1, 2), 1, 9).tried(heads="grouped", **dict.fromkeys(variants, "nothing"))
        beyond.append(step)
    return _cases(subject, *masks, variants={**variants, "heads": heads}, beyond=tuple(beyond))


@invariant(
    hint="it is in another base, of other scores or heads, or lacks the maximum",
    kinds=("mechanism",),
    cases=_sum_cases,
    applies=_returns_textbook,
)
def log_sums_are_those_of_the_scores(subject: Subject, case: Case) -> None:
    """The log-sum-exp that comes with the output is that of the scores that masks leave, in the
    base that is declared.
    """
    sums, option = _Sums(subject, case), str(case.variant("given", "nothing"))
    alone = case.mask == "none" and case.q_len <= case.kv_len  # more together may be refused
    changes: dict[str, Any] = {
        name: value
        for name, value in _OPTIONS.items()
        if alone and option in (name, "all") and name in subject.accepts
    }
    if option == "dropout":  # log-sums are of all weights, before some are dropped
        sums.base.module.train()
        changes["dropout_p"] = 0.5
    is_grouped = case.variant("heads", "own") == "grouped" and len(case.lead) > 0
    inputs = grouped(sums.base.inputs) if is_grouped else sums.base.inputs
    inputs = inputs.replace(**changes)
    with torch.no_grad():
        _, lse = sums.subject.output_and_log_sums(sums.base.module, inputs)
        right = stages_of(inputs).log_sums
        wide = inputs.map(lambda tensor: tensor.detach().cpu().double())
        moved = _moved(sums.base, wide, lambda given: stages_of(given).log_sums)
        allowed = sums.allowed(lse, right / sums.unit) + moved
    right = right / sums.unit
    seen = right > -math.inf
    if not bool(seen.all()) and subject.conventions.empty_rows == "zeros":
        _empty(lse, seen, subject.conventions.lse_empty)
    got = torch.where(seen, lse.cpu().double(), right)
    base = "" if subject.conventions.lse_base == "e" else " in base 2"
    what = "".join(f"with {name}={value}, " for name, value in changes.items())
    what += "with grouped heads, lse" if is_grouped else "lse"
    agree_within(got, right, allowed, what, f"the log-sum-exp of the scores{base}")


def _moved(base: Baseline, inputs: Inputs, log_sums: Callable[[Inputs], Tensor]) -> Tensor:
    """How far log-sums move when query and key move by one unit in the last place."""
    with torch.no_grad():
        still = log_sums(inputs)
    steps = [base.eps] * _MOVES
    return 8 * change_by_moves(lambda move: log_sums(inputs.map(move)), still, steps).cpu()


def _empty(lse: Tensor, seen: Tensor, expected: float) -> None:
    found = lse.detach().cpu().double()[~seen]
    wrong = found != expected
    if math.isnan(expected) or not bool(wrong.any()):
        return
    raise InvariantViolation(
        quantity="lse",
        place=[int(i) for i in (~seen).nonzero()[int(wrong.to(torch.uint8).argmax())]],
        got=str(float(found[wrong][0])),
        expected=f"{expected} in a row without keys (convention lse_empty)",
    )


def _returns(subject: Subject) -> str | None:
    assert isinstance(subject, MechanismSubject)
    reason = 'returns no log-sum-exp: declare returns=("output", "lse")'
    return None if "lse" in subject.spec.returns else reason


def _split_cases(subject: Subject) -> CaseStrategy:
    masks = ("none", "boolean", "padding") if subject.takes_mask("boolean") else ("none",)
    wide = tuple(d for d in ("float32", "float64") if d in subject.dtypes)
    variants: dict[str, tuple[str | bool, ...]] = {"split": ("halves", "mixed", "single")}
    if subject.conventions.gradients:
        variants["gradients"] = (False, True)
    return _cases(subject, *masks, variants=variants, dtypes=wide or subject.dtypes)


@invariant(
    hint="log-sums and outputs do not belong together, or a part is masked otherwise",
    kinds=("mechanism",),
    cases=_split_cases,
    applies=any_of(_returns, knows_positions),
    law=True,
)
def splits_merge(subject: Subject, case: Case) -> None:
    """Outputs and log-sums of the parts of any split of the keys merge to those of all keys, and so
    do gradients.
    """
    sums = _Sums(subject, case)
    base, gradients = sums.base, case.variant("gradients", False)
    leaves = base.inputs.map(lambda tensor: tensor.detach().clone().requires_grad_(bool(gradients)))
    whole = sums.ask(leaves)
    change, parts = _parts(base, str(case.variant("split", "halves")))
    merged = merge([sums.ask(select_keys(leaves, part)) for part in parts])
    what = f"merged over {change}"
    seen = whole[1] > -math.inf
    one, other = (lse.masked_fill(~seen, 0.0) for lse in (merged[1], whole[1]))
    allowed = sums.allowed(other, other.cpu())
    eps = sums.eps(whole[1])
    if eps > base.eps:  # the shares of the parts are as exact as the log-sums
        size = largest(allowed) * largest(base.inputs.value)
        agree_within(merged[0], whole[0], size, f"{what}, output", "the call on all keys")
    else:
        base.expect(merged[0].to(whole[0].dtype), f"{what}, output", "the call on all keys")
    allowed = allowed + _moved(base, base.inputs, lambda given: sums.ask(given)[1])
    agree_within(one, other, allowed, f"{what}, lse", "that of the call on all keys")
    if not (gradients and whole[1].requires_grad and whole[0].requires_grad):
        return
    weights = [torch.randn(t.shape, generator=base.generator).to(t) for t in (whole[0], one)]
    named = {name: getattr(leaves, name) for name in ("query", "key", "value")}
    found = []
    for output, lse in ((merged[0], one), (whole[0], other)):
        loss = (output * weights[0]).sum() + (lse * weights[1]).sum()
        found.append(_gradients(loss, named))
    for name, got in found[0].items():
        change = f"{what}, gradient by {name}"
        same_gradient(got, found[1][name], change, "the call on all keys", eps=eps)


def _gradients(loss: Tensor, named: dict[str, Tensor]) -> dict[str, Tensor | None]:
    """Gradients by name; what the backward pass raises is a refusal."""
    try:
        found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    except Exception as error:
        raise RefusalError(f"it refuses a gradient of its log-sums: {error}") from None
    return dict(zip(named, found, strict=True))


def _parts(base: Baseline, split: str) -> tuple[str, list[Tensor]]:
    """Splits of the keys: two halves, parts of any size and order, or each key by itself."""
    slots = torch.arange(base.inputs.key.shape[-2])
    if split == "halves":
        if len(slots) < 2:
            reject("a single key cannot be split")
        return "two halves of the keys", list(slots.chunk(2))
    if split == "single":
        return "single keys", list(slots[:, None])
    mixed = slots[torch.randperm(len(slots), generator=base.generator)]
    return "three parts of the keys in another order", [p for p in mixed.tensor_split(3) if len(p)]


def merge(parts: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Merge outputs ``(..., L, Ev)`` over parts of the keys by their log-sums ``(..., L)``."""
    wide = torch.promote_types(parts[0][0].dtype, torch.float32)
    lse = torch.stack([part[1].to(wide) for part in parts])
    top = lse.detach().amax(0)
    top = top.masked_fill(top == -math.inf, 0.0)
    shares = (lse - top).exp()
    total = shares.sum(0)
    seen = total > 0
    outputs = torch.stack([part[0].to(wide) for part in parts])
    output = (shares.unsqueeze(-1) * outputs).sum(0) / torch.where(seen, total, 1.0).unsqueeze(-1)
    return output, torch.where(seen, torch.where(seen, total, 1.0).log() + top, -math.inf)


def _is_narrow(subject: Subject) -> str | None:
    return None if {*_WIDE} & {*subject.dtypes} else "neither float32 nor float64 is supported"


@invariant(
    hint="the backward pass ignores the gradient of the log-sums",
    kinds=("mechanism",),
    cases=lambda subject: _cases(
        subject, "none", "causal", dtypes=tuple(d for d in _WIDE if d in subject.dtypes)
    ),
    applies=any_of(_returns_textbook, has_no_gradients, _is_narrow),
)
def log_sums_take_gradients(subject: Subject, case: Case) -> None:
    """The gradient of the log-sum-exp by query and key is right, or it is refused."""
    sums = _Sums(subject, case)
    leaves = sums.base.inputs.map(lambda tensor: tensor.detach().clone().requires_grad_())
    named = {name: getattr(leaves, name) for name in ("query", "key")}
    output, lse = sums.ask(leaves)
    if not output.requires_grad:
        reject("the invariants on gradients tell")
    if not lse.requires_grad:
        raise InvariantViolation(
            "lse.requires_grad = False, but should be True: a loss of the log-sum-exp, as merged "
            "outputs are, gets no gradient, and nothing says so. Let the backward pass raise, or "
            "declare exempt"
        )
    seen = lse > -math.inf
    weight = torch.randn(lse.shape, generator=sums.base.generator).to(lse)
    got = _gradients((lse.masked_fill(~seen, 0.0) * weight).sum(), named)
    right = stages_of(leaves).log_sums
    wide = (right.masked_fill(~seen.cpu(), 0.0) * weight.cpu().double()).sum()
    for name, expected in _gradients(wide, named).items():
        what = f"the gradient of lse by {name}"
        same_gradient(got[name], expected, what, "that of the scores", eps=sums.base.eps)


def _cases(subject: Subject, *masks: str, **given: object) -> CaseStrategy:
    return benign(
        subject,
        masks=tuple(mask for mask in masks if subject.takes_mask(mask)),
        regimes=("normal",),
        drawn_len=17,
        **given,
    )
