"""Laws of mechanisms that choose keys (hard, monotonic), and of the penalty on equal rows."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Inputs, Subject
from attnbench.strategies import CaseStrategy, cases
from attnbench.testing import agree_within, holds, invariant, reject, softmax_weights
from attnbench_plugins.laws.rows import built_with_weights, member

_SAMPLES = 4000
_FALSE_ALARM = 1e-9
"""Probability of a false alarm per case; below 1e-6 per run of some hundred cases."""


_law = functools.partial(invariant, law=True)


def _one_query(subject: Subject) -> CaseStrategy:
    """Cases of a single query with several keys: with one there is nothing to choose."""
    drawn = cases(
        subject,
        leads=(0,),
        dtypes=("float64",),
        masks=("none",),
        regimes=("normal", "equal_keys"),
        min_kv_len=2,
        max_len=8,
        layouts=("contiguous",),
    )
    return drawn.map(lambda case: case.replace(q_len=1))


def _scoring(module: Any) -> Any:
    return member(module, "scoring", "a module (query, key) for the scores before mask and softmax")


def _soft(module: Any, inputs: Inputs) -> Tensor:
    """The soft weights from which a key is chosen."""
    return softmax_weights(_scoring(module)(inputs.query, inputs.key), inputs.mask)


@_law(hint="another key is taken, or more than one counts")
def picks_one_key(subject: Subject, case: Case) -> None:
    """Each query has one key: the most likely one."""
    module, inputs, weights = built_with_weights(subject, case)
    alive = inputs.allowed.any(-1).double()
    holds((weights == 0) | (weights == 1), "weights", weights, "0 or 1")
    agree_within(weights.sum(-1), alive, 0.0, "weights.sum(-1)", "a row with a key left")
    soft = _soft(module, inputs).double().detach() * alive.unsqueeze(-1)
    lost = soft.amax(-1) - (soft * weights).sum(-1)
    # of keys whose scores float32 cannot tell apart, of which there are many far from the origin,
    # any will do
    scores = _scoring(module)(inputs.query, inputs.key).detach()
    size = scores.masked_fill(~inputs.allowed, 0.0).abs().amax(-1).double()
    eps = max(torch.finfo(dtype).eps for dtype in (scores.dtype, torch.float32))
    slack = -torch.expm1(-8 * eps * size) * soft.amax(-1)
    holds(
        lost <= slack + 1e-5,
        "soft weight below the largest",
        lost,
        "0: the most likely key is chosen",
    )
    with torch.no_grad():
        sampled = subject.weights(module.train(), inputs)
    assert sampled is not None
    total = sampled.double().sum(-1)
    agree_within(total, alive, 0.0, "in training, weights.sum(-1)", "a row with a key left")
    hidden = ~inputs.allowed & (sampled != 0)
    holds(~hidden, "in training, weights", sampled, "0: the mask hides that key")


def _sampled(subject: Subject, case: Case) -> tuple[Any, Inputs, Tensor, Tensor]:
    """Sample one query many times: module, inputs of that query, weights ``(N, S)``, query."""
    module, inputs = subject.build(case)
    query = inputs.query.detach().clone().requires_grad_()
    many = inputs.replace(
        query=query.expand(_SAMPLES, -1, -1),
        key=inputs.key.expand(_SAMPLES, -1, -1),
        value=inputs.value.expand(_SAMPLES, -1, -1),
    )
    weights = subject.weights(module.train(), many)
    assert weights is not None
    return module, inputs, weights.squeeze(-2), query


@_law(hint="keys are drawn by other chances, or not drawn anew", cases=_one_query)
def samples_follow_soft_weights(subject: Subject, case: Case) -> None:
    """Keys are sampled by soft weight."""
    module, inputs, weights, _ = _sampled(subject, case)
    soft = _soft(module, inputs).squeeze(-2).double()
    # Hoeffding: a frequency over N samples is off by more with probability _FALSE_ALARM
    band = math.sqrt(math.log(2 * case.kv_len / _FALSE_ALARM) / (2 * _SAMPLES))
    share = weights.double().mean(0)
    agree_within(share, soft, band, "share of samples", "the soft weights")


@_law(hint="what is kept is not of the keys that were drawn", cases=_one_query)
def score_function_gradient_is_exact(subject: Subject, case: Case) -> None:
    """The kept log-probabilities give the gradient of the enumerated expectation."""
    module, inputs, weights, query = _sampled(subject, case)
    soft = _soft(module, inputs.replace(query=query)).squeeze()
    chosen = weights.detach().argmax(-1)
    counts = torch.bincount(chosen, minlength=case.kv_len)
    reward = torch.arange(case.kv_len).to(soft) - 1.5
    # the samples of a key together carry its weight, so that the sum is not random
    each = (soft.detach() * reward / counts.clamp_min(1)).gather(0, chosen)
    log_prob = member(module, "log_prob", "the log-probabilities of the keys chosen last")
    kept = (each * log_prob.squeeze(-1)).sum()
    enumerated = (soft * reward * (counts > 0)).sum()
    got, expected = (
        torch.autograd.grad(x, query, retain_graph=True)[0] for x in (kept, enumerated)
    )
    scale = float(expected.detach().abs().amax()) + 1.0
    what = "the score-function gradient of the query"
    agree_within(got, expected, 1e-9 * scale, what, "the enumerated expectation")


@_law(hint="the position before is not carried on")
def position_never_moves_back(subject: Subject, case: Case) -> None:
    """A query attends to no key before the one that the query before it attended to."""
    _, inputs, weights = built_with_weights(subject, case)
    alive = inputs.allowed.any(-1)
    stopped = weights.sum(-1) > 0
    place = torch.where(stopped, weights.argmax(-1), case.kv_len)
    # a query without keys leaves the position unchanged
    before = torch.where(alive, place, -1).cummax(-1).values
    forward = ~alive | (place >= before)
    holds(forward, "position", place, "at least that of the query before")


@_law(
    hint="chances are multiplied up wrongly, or lose all digits",
    dtypes=("float64", "float32"),
    masks=("none", "boolean", "boolean_shared", "key_row"),
    max_len=17,
)
def training_is_the_expectation(subject: Subject, case: Case) -> None:
    """In training the weights are the chances of stopping; gradients are finite."""
    module: Any
    module, inputs = subject.build(case)
    query, key = inputs.query, inputs.key
    output, weights = module.train()(
        query, key, inputs.value, inputs.attn_mask, return_weights=True
    )
    with torch.no_grad():
        scores = _scoring(module)(query, key)
        exact = copy.deepcopy(module.scoring).double()(query.double(), key.double())
        stop = (
            scores + member(module, "offset", "what is added to a score")
        ).double().sigmoid() * inputs.allowed
        # the module may add up its scores in another order, and round them as much as these
        rounding = float(((scores - exact) * inputs.allowed).abs().max())
    tolerance = 1e-6 + 4 * rounding
    standing = torch.zeros(*case.lead, case.kv_len, dtype=torch.float64)
    standing[..., 0] = 1
    for row in range(case.q_len):
        passing, expected = torch.zeros(case.lead, dtype=torch.float64), torch.zeros_like(standing)
        for slot in range(case.kv_len):
            passing = passing + standing[..., slot]
            expected[..., slot] = passing * stop[..., row, slot]
            passing = passing - expected[..., slot]
        standing = expected
        what = f"in training, weights[..., {row}, :]"
        agree_within(weights[..., row, :], expected, tolerance, what, "the recursion, slot by slot")
    parameters = dict(module.named_parameters())
    for name, gradient in zip(
        parameters, torch.autograd.grad(output.sum(), list(parameters.values())), strict=True
    ):
        holds(gradient.isfinite(), f"in training, gradient of {name}", gradient, "finite")


@_law(hint="the diagonal is left out, or it is not of the rows")
def penalty_is_zero_iff_orthonormal(subject: Subject, case: Case) -> None:
    """The penalty is 0 exactly when the rows of weights are orthonormal."""
    module, _, weights = built_with_weights(subject, case)
    rows = weights.shape[-2]
    gram = torch.einsum("...rs,...ts->...rt", weights, weights)
    apart = (gram - torch.eye(rows, dtype=gram.dtype)).abs().amax((-2, -1))
    penalty_of = member(module, "penalty", "a method (weights) for the penalty on equal rows")
    penalty = penalty_of(weights)
    holds((penalty > 0) == (apart > 0), "penalty", penalty, "0 just where A Aᵀ = I")
    wide = max(rows, case.kv_len)
    order = torch.randperm(wide, generator=torch.Generator().manual_seed(case.seed))
    orthonormal = torch.eye(wide, dtype=torch.float64)[order][:rows]
    none = penalty_of(orthonormal)
    holds(none == 0, "penalty of rows on one key each", none, "exactly 0")
    if rows < 2:
        reject("one row on one key is orthonormal")
    shared = penalty_of(orthonormal[:1].expand(rows, -1))
    wanted = torch.tensor(float(rows * (rows - 1)), dtype=torch.float64)
    agree_within(shared, wanted, 1e-12, "penalty of equal rows", "r(r − 1) pairs")
