"""Invariants on gradients: they are right, they reach every parameter, and they stay finite."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.cases.case_strategies import CaseStrategy
from attnbench.errors import InvariantViolation
from attnbench.invariants.toolkit.applicability import any_of, has_no_gradients
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import differentiate, holds, reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import FREE_MASKS, benign, hand_picked, leaves_of
from attnbench.invariants.toolkit.slopes import compare_slopes, gradients_of, has_slopes
from attnbench.oracle.references import widened
from attnbench.specs import KINDS
from attnbench.subject.devices import seed
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, largest

_LONG_CASES = (
    Case((1,), 1, 1025, dtype="float64"),
    Case((1,), 131, 130, dtype="float64", seed=1),
    Case((1,), 130, 131, dtype="float64", mask="causal", seed=2),
    Case((1,), 40, 140, dtype="float64", mask="causal", seed=3),
    Case((1,), 140, 140, dtype="float64", mask="causal", seed=4),
    Case((1,), 48, 240, dtype="float64", seed=5),  # whole blocks of 24, 40, 48 or 80
)
_BIAS_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, dtype="float64", mask="bias"),
    Case((2,), 3, 5, dtype="float64", mask="floating", seed=1),
    Case((), 1, 7, dtype="float64", mask="bias", seed=2),
    Case((1,), 35, 140, dtype="float64", mask="bias", seed=3),
)
_PARAMETER_CASES = (Case((2,), 3, 5, 4, 4, 4), Case((1, 2), 4, 4, 6, 5, 3, seed=8))


def _slope_cases(subject: Subject) -> CaseStrategy:
    return benign(
        subject,
        dtypes=("float64",),
        regimes=("normal", "equal_keys"),
        max_len=9,
        max_features=9,
        beyond=() if subject.kind == "layer" else _LONG_CASES,  # longer than a kernel's blocks
    )


@invariant(kinds=KINDS, cases=_slope_cases, applies=has_slopes)
def gradients_are_right(subject: Subject, case: Case) -> None:
    """Gradients are the slopes that finite differences in float64 show."""
    base = Baseline(subject, case)
    inputs, leaves = leaves_of(base.module, base.inputs)
    compare_slopes(base, inputs, leaves)


@invariant(cases=hand_picked(*_BIAS_CASES), applies=has_slopes)
def bias_gets_its_gradient(subject: Subject, case: Case) -> None:
    """A floating mask is added to the scores, and gets their gradient."""
    base = Baseline(subject, case)
    assert base.inputs.attn_mask is not None
    # value too, so that an output without a graph is told from a mask without a gradient
    value = base.inputs.value.detach().requires_grad_()
    for bias in _shared(base.inputs.attn_mask, case):
        leaf = bias.detach().requires_grad_()
        change = f"with a mask {tuple(leaf.shape)}, " if leaf.shape != base.allowed.shape else ""
        given = base.inputs.replace(attn_mask=leaf, value=value)
        compare_slopes(base.on(given), given, {"attn_mask": leaf}, change)


def _shared(bias: Tensor, case: Case) -> Iterator[Tensor]:
    """A mask as it is, and what of it all items, all queries or all heads may share."""
    yield bias
    if case.kv_len > 17:
        return
    first = bias[(0,) * len(case.lead)]
    yield first  # one for all items, as a learned bias is
    yield first[:1]
    if len(case.lead) > 1:  # one for each item, for all its heads and queries, or for each head
        yield from (bias[:, :1, :1], bias[:1])


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Trainable tensors that are missing from ``parameters()``."""
    known = {id(parameter) for parameter in module.parameters()}
    for place, part in module.named_modules():
        for name, held in vars(part).items():
            trained = isinstance(held, Tensor) and held.is_leaf and held.requires_grad
            if trained and id(held) not in known:
                yield f"{place}.{name}".lstrip(".")


def _has_parameters(subject: Subject) -> str | None:
    if subject.kind == "kernel":
        return "its parameters are those of its scoring function"
    case = subject.legal(Case(dtype=subject.dtypes[0]))
    module = subject.make(case.query_size, case.key_size, case.value_size)
    if any(parameter.requires_grad for parameter in module.parameters()):
        return None
    return None if any(_unregistered(module)) else "it has no parameters"


_TRIES = 4
"""Number of seeds tried before a gradient of 0 counts as a failure."""

_ROUNDING = 80.0
"""A gradient of fewer units is a sum that cancels: those here are of numbers of order 1."""

_NONE = "none at all"
"""What a gradient that does not exist is called."""

_CANCELLED = "0 but for rounding, as where softmax cancels what all keys have in common"
"""What a gradient of the output whose terms cancel is called."""


def _unreached(subject: Subject, case: Case) -> dict[str, str]:
    """What each parameter lacks that no seed reaches, and the query, by name and in words."""
    lacking: dict[str, str] = {}
    for number in range(_TRIES):
        base = Baseline(subject, case.replace(seed=case.seed + number))
        found = _lacking(base)
        lacking = {name: what for name, what in found.items() if not number or name in lacking}
        if not lacking.keys() - {"query"}:
            return {}
    return lacking


def _lacking(base: Baseline) -> dict[str, str]:
    inputs, named = leaves_of(base.module, base.inputs)
    named = {n: leaf for n, leaf in named.items() if n.startswith("parameter") and leaf.numel()}
    if not named:
        reject("it has no parameters")
    base.module.train()  # where parameters are trained, and a hard choice becomes a soft one
    result = _result(base, inputs)
    weight = torch.randn(result.shape, generator=base.generator).to(result)
    gradients = gradients_of((result * weight).sum(), {**named, "query": inputs.query})
    found = {name: _lack(base, gradient) for name, gradient in gradients.items()}
    if found["query"] == _CANCELLED and not _ignores_query(base):
        found["query"] = ""  # it is small, as where a softmax is saturated
    # a bias of all keys cancels by design; where the query does, no weight depends on it
    passed = {""} if found["query"] == _CANCELLED else {"", _CANCELLED}
    return {name: what for name, what in found.items() if what not in passed}


def _result(base: Baseline, inputs: Inputs) -> Tensor:
    """The scores if there are any: softmax cancels what all keys have in common."""
    scores = base.subject.scores(base.module, inputs)
    return base.run(inputs) if scores is None else scores


def _lack(base: Baseline, gradient: Tensor | None) -> str:
    """What a gradient is, in words, if that is too little."""
    if gradient is None:
        return _NONE
    size = float(gradient.abs().max())
    if not size < _ROUNDING * base.eps:
        return ""
    if base.subject.scoring is not None:
        return "0 but for rounding" if size else "0 in every entry"
    # a mechanism may drop a score, as with one key in its window; the slopes tell a true 0
    return _CANCELLED if size else ""


def _ignores_query(base: Baseline) -> bool:
    """Whether another query gets the same output."""
    other = base.inputs.replace(query=base.other(base.inputs.query))
    seed(base.case.device, base.case.seed)
    output = base.run(base.inputs)
    seed(base.case.device, base.case.seed)
    return largest(base.run(other) - output) <= 256 * base.eps * largest(output)


@invariant(cases=hand_picked(*_PARAMETER_CASES), applies=any_of(has_no_gradients, _has_parameters))
def gradients_reach_every_parameter(subject: Subject, case: Case) -> None:
    """Every parameter is reached by a gradient from the scores, or from the output."""
    for name in _unregistered(Baseline(subject, case).module):
        raise InvariantViolation(
            f"the module holds {name}, a tensor that requires a gradient, but should hold it as a "
            "torch.nn.Parameter: no optimiser, state_dict() or .to() knows it"
        )
    lacking = _unreached(subject, case)
    if lacking and "float64" in subject.dtypes:  # where one that is only small is not 0
        wide = _unreached(subject, case.replace(dtype="float64"))
        lacking = {name: what for name, what in lacking.items() if what == _NONE or name in wide}
    if not lacking.keys() - {"query"}:
        return
    name, what = next(iter(lacking.items()))
    source = "the output" if subject.scoring is None else "the scores"
    raise InvariantViolation(
        f"the gradient that reaches {name} from {source} is {what}, but should be nonzero "
        f"({_TRIES} seeds were tried): it cannot be trained"
    )


@invariant(
    regimes=("huge", "near_overflow", "opposed", "far", "tiny", "equal_keys", "zero_keys"),
    masks=FREE_MASKS,
    layouts=("contiguous",),
    max_len=17,
    variants={"scores": ("own", "lowered", "own", "own")},
    applies=has_no_gradients,
)
def gradients_are_finite_at_extremes(subject: Subject, case: Case) -> None:
    """Gradients are finite wherever the output and the gradients in float64 are."""
    module, inputs = subject.build(case)
    if (
        case.mask == "none" and case.variant("scores", "own") == "lowered"
    ):  # a mask may lower the scores of all keys
        low = torch.full((case.q_len, case.kv_len), -200.0, device=case.device)
        inputs = inputs.replace(attn_mask=low.to(inputs.query.dtype))
    given, named = leaves_of(module, inputs)
    output = subject.output(module, given)
    if not bool(output.isfinite().all()):
        reject("the output is not finite, which another invariant looks at")
    for name, gradient in gradients_of(output.sum(), named).items():
        if gradient is not None and not bool(gradient.isfinite().all()):
            large = ~_representable(subject, module, inputs, name).to(gradient.device)
            what = "finite: so it is in float64, and within what the dtype can hold"
            holds(
                gradient.isfinite() | large, f"gradient of output.sum() by {name}", gradient, what
            )


_DRAWS = 4
"""Number of times that the gradient of the output is rounded, up or down by chance."""


def _representable(subject: Subject, module: nn.Module, inputs: Inputs, name: str) -> Tensor:
    """The elements whose gradient in float64 is well within the range of the dtype.

    It stays there if the gradient of each output is rounded to the dtype: if not, the element is
    a sum of terms that cancel, each of which may be out of range.
    """
    wide_module, wide = widened(module, inputs)
    given, named = leaves_of(wide_module, wide)
    output = subject.output(wide_module, given)
    eps = subject.eps(inputs.query.dtype)
    generator = torch.Generator().manual_seed(0)
    largest = torch.zeros_like(named[name])
    for draw in range(1 + _DRAWS):
        noise = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output)
        weight = torch.ones_like(output) if draw == 0 else 1 + eps * noise
        gradient = differentiate(output, [named[name]], weight, retain_graph=True)[0]
        assert gradient is not None
        largest = torch.maximum(largest, gradient.abs())
    return largest < torch.finfo(inputs.query.dtype).max / 64
