"""Invariants on gradients: they are right, they reach every parameter, and they stay finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn

from attnbench.cases import Case
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.inputs import Inputs
from attnbench.invariants.baseline import Baseline
from attnbench.invariants.compare import agree_within, differentiate, holds, reject
from attnbench.invariants.deriving import benign, leaves_of
from attnbench.references import widened
from attnbench.specs import Invariant
from attnbench.strategies import cases, listed
from attnbench.subject import Subject

__all__ = ["compare_slopes", "has_slopes"]


def _gradients(total: Tensor, named: dict[str, Tensor]) -> dict[str, Tensor | None]:
    if not total.requires_grad:
        raise InvariantViolation(
            "output.requires_grad = False, but should be True, as value.requires_grad is: "
            "the output is cut off from the graph"
        )
    found = differentiate(total, list(named.values()))
    return dict(zip(named, found, strict=True))


_STEP, _FINER, _OTHERS = 1e-5, 1e-6, (1e-4, 1e-7)
"""Steps of finite differences; where one disagrees, the next ones are tried."""


def _right(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    compare_slopes(base, *leaves_of(base.module, base.inputs))


def _bias_right(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    assert base.inputs.attn_mask is not None
    # value too, so that an output without a graph is told from a mask without a gradient
    value = base.inputs.value.detach().requires_grad_()
    for bias in _shared(base.inputs.attn_mask, case):
        leaf = bias.detach().requires_grad_()
        told = f"with a mask {tuple(leaf.shape)}, " if leaf.shape != base.allowed.shape else ""
        given = base.inputs.replace(attn_mask=leaf, value=value)
        compare_slopes(base.on(given), given, {"attn_mask": leaf}, told)


def _shared(bias: Tensor, case: Case) -> Iterator[Tensor]:
    """A mask as it is, and what of it all items, all queries or all heads may share."""
    yield bias
    if case.kv_len > 17:
        return
    first = bias[(0,) * len(case.lead)]
    yield first  # one for all items, as a learned bias is
    yield first[:1]
    if len(case.lead) > 1:  # one for each item, for all its heads and queries
        yield bias[:, :1, :1]


def compare_slopes(
    base: Baseline, inputs: Inputs, named: dict[str, Tensor], told: str = ""
) -> None:
    """Hold the gradients by some leaves of the inputs against finite differences.

    Args:
        base: runs the inputs; it gives the same output for the same ones.
        inputs: with the leaves.
        named: leaves, with names.
        told: what is special about the call, before the failure's text.
    """
    weight = torch.randn(base.output.shape, generator=base.generator, dtype=torch.float64)
    weight = weight.to(base.output)
    total = (base.run(inputs) * weight).sum()
    gradients = _gradients(total, named)
    ways = {
        name: torch.randn(leaf.shape, generator=base.generator, dtype=torch.float64).to(leaf)
        for name, leaf in named.items()
    }

    def compare(names: Iterable[str], *, closely: bool) -> tuple[Tensor, Tensor] | None:
        """The slope by the gradient, and by finite differences; ``None`` if they agree."""
        moves = [(named[name], ways[name]) for name in names]
        got = torch.zeros((), dtype=torch.float64, device=weight.device)
        for name in names:
            gradient = gradients[name]
            if gradient is not None:
                got = got + (gradient * ways[name]).sum()

        def near(slope: Tensor) -> bool:
            return abs(float(got - slope)) <= _slack(slope, base)

        def slope(step: float) -> tuple[Tensor, Tensor]:
            """By differences to both sides, and how far each side's alone is from the other's."""
            up, down = _ends(base, inputs, moves, step, weight)
            return (up - down) / (2 * step), (up + down - 2 * total.detach()) / step

        first, bend = slope(_STEP)
        if near(first) or not closely:
            return None if near(first) else (got, first)
        finer, less_bend = slope(_FINER)
        # the error of a difference goes with the square of its step, which two of them cancel
        if any(map(near, (finer, (100 * finer - first) / 99))):
            return None
        if any(near(slope(step)[0]) for step in _OTHERS):
            return None
        off = abs(float(got - finer))
        # with a kink or a jump within the step, slopes do not settle, or each side has its own
        kink = abs(float(less_bend)) > max(off, abs(float(bend))) / 4
        if kink or abs(float(finer - first)) > off / 4:
            rough.append(True)
            return None
        return got, finer

    rough: list[bool] = []
    if compare(list(named), closely=False) is None:
        return
    for name in named:  # one by one, to say which is wrong
        differing = compare([name], closely=True)
        if differing is not None:
            got, should = differing
            what = f"{told}the slope of (output * g).sum() along a random direction of {name}"
            lacking = "" if gradients[name] is not None else ", and no gradient reaches it"
            why = f"the first is by its gradient, the second by finite differences{lacking}"
            agree_within(got, should, _slack(should, base), what, None, why=why)
    if rough:
        reject("it is not smooth here: no slope is that of smaller steps, or of both sides")


def _slack(slope: Tensor, base: Baseline) -> float:
    """What two slopes may differ by: little, so that a sum in float32 on the way is seen."""
    # sums of many terms are steep, and the factor of dropout may be one of float32
    rough = max(base.case.q_len, base.case.kv_len) > 17 or base.inputs.dropout_p > 0
    return (1e-5 if rough else 2e-8) * max(1.0, abs(float(slope)))


def _ends(
    base: Baseline,
    inputs: Inputs,
    moves: list[tuple[Tensor, Tensor]],
    step: float,
    weight: Tensor,
) -> tuple[Tensor, Tensor]:
    """The weighted output with all leaves moved by a step, and by as much the other way."""
    ends = []
    with torch.no_grad():
        for sign in (step, -step):
            for leaf, way in moves:
                leaf += sign * way
            ends.append((base.run(inputs) * weight).sum())
            for leaf, way in moves:
                leaf -= sign * way
    return ends[0], ends[1]


_TRIES = 4
"""Seeds tried before a gradient of 0 counts."""


_ROUNDING = 1e-5
"""A gradient below it is a sum that cancels: those here are of random numbers of order 1."""


def _lacks(subject: Subject, gradient: Tensor | None) -> bool:
    if gradient is None:
        return True
    # a mechanism may cancel a score, as with one key in its window; the slopes tell a true 0
    return subject.scoring is not None and float(gradient.abs().max()) < _ROUNDING


def _unregistered(module: nn.Module) -> Iterator[str]:
    """Tensors to be trained that ``parameters()`` does not know."""
    known = {id(parameter) for parameter in module.parameters()}
    for place, part in module.named_modules():
        for name, held in vars(part).items():
            trained = isinstance(held, Tensor) and held.is_leaf and held.requires_grad
            if trained and id(held) not in known:
                yield f"{place}.{name}".lstrip(".")


def _reached(subject: Subject, case: Case) -> None:
    for name in _unregistered(Baseline(subject, case).module):
        raise InvariantViolation(
            f"the module holds {name}, a tensor that requires a gradient, but should hold it as a "
            "torch.nn.Parameter: no optimiser, state_dict() or .to() knows it"
        )
    lacking: dict[str, str] = {}
    for number in range(_TRIES):
        base = Baseline(subject, case.replace(seed=case.seed + number))
        inputs, named = leaves_of(base.module, base.inputs)
        named = {name: leaf for name, leaf in named.items() if name.startswith("parameter")}
        if not named:
            reject("it has no parameters")
        base.module.train()  # where parameters are trained, and a hard choice becomes a soft one
        # of a scoring function the scores count: softmax cancels what all keys have in common
        result = subject.scores(base.module, inputs)
        result = base.run(inputs) if result is None else result
        weight = torch.randn(result.shape, generator=base.generator).to(result)
        gradients = _gradients((result * weight).sum(), named)
        lacking = {
            name: "none at all" if gradient is None else "0 in every entry"
            for name, gradient in gradients.items()
            if (number == 0 or name in lacking) and _lacks(subject, gradient)
        }
        if not lacking:
            return
    name, what = next(iter(lacking.items()))
    source = "the output" if subject.scoring is None else "the scores"
    raise InvariantViolation(
        f"the gradient that reaches {name} from {source} is {what}, but should be nonzero "
        f"({_TRIES} seeds were tried): it cannot be trained"
    )


def _finite(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    if case.mask == "none" and case.seed % 4 == 1:  # a mask may lower the scores of all keys
        low = torch.full((case.q_len, case.kv_len), -200.0, device=case.device)
        inputs = inputs.replace(attn_mask=low.to(inputs.query.dtype))
    given, named = leaves_of(module, inputs)
    output = subject.output(module, given)
    if not bool(output.isfinite().all()):
        reject("the output is not finite, which another invariant looks at")
    for name, gradient in _gradients(output.sum(), named).items():
        if gradient is not None and not bool(gradient.isfinite().all()):
            large = ~_representable(subject, module, inputs, name).to(gradient.device)
            what = "finite: so it is in float64, and within what the dtype can hold"
            holds(
                gradient.isfinite() | large, f"gradient of output.sum() by {name}", gradient, what
            )


def _representable(subject: Subject, module: nn.Module, inputs: Inputs, name: str) -> Tensor:
    """Where the gradient in float64 is well within what the dtype can hold."""
    wide_module, wide = widened(module, inputs)
    given, named = leaves_of(wide_module, wide)
    gradient = _gradients(subject.output(wide_module, given).sum(), named)[name]
    assert gradient is not None
    return gradient.abs() < torch.finfo(inputs.query.dtype).max / 64


def _as_on_plain_path(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    plain = Subject(subject.name, "scoring", subject.maker, subject.scoring, subject.options)
    inputs, named = leaves_of(base.module, base.inputs)
    weight = torch.randn(base.output.shape, generator=base.generator).to(base.output)
    ways = [(s.output(base.module, inputs) * weight).sum() for s in (subject, plain)]
    got, expected = (_gradients(total, named) for total in ways)
    eps = torch.finfo(inputs.query.dtype).eps
    for name, leaf in named.items():
        one, other = (
            torch.zeros_like(leaf) if g is None else g for g in (got[name], expected[name])
        )
        # the gradient of a score is a small difference of products of order 1, and that of a
        # parameter a sum over all scores, which may cancel to less than the sum was rounded to
        summed = math.prod(base.allowed.shape) ** 0.5 if name.startswith("parameter") else 1.0
        sizes = (float(tensor.detach().abs().max()) for tensor in (other, leaf))
        tolerance = 256 * eps * max(summed, *sizes)
        agree_within(one, other, tolerance, f"gradient by {name}", f"{subject.maker.name} itself")


_LONG_CASES = (
    Case((1,), 1, 1025, dtype="float64"),
    Case((1,), 131, 130, dtype="float64", seed=1),
    Case((1,), 130, 131, dtype="float64", mask="causal", seed=2),
    Case((1,), 40, 140, dtype="float64", mask="causal", seed=3),
    Case((1,), 140, 140, dtype="float64", mask="causal", seed=4),
)
_BIAS_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, dtype="float64", mask="bias"),
    Case((2,), 3, 5, dtype="float64", mask="floating", seed=1),
    Case((), 1, 7, dtype="float64", mask="bias", seed=2),
    Case((1,), 35, 140, dtype="float64", mask="bias", seed=3),
)
_PARAMETER_CASES = (Case((2,), 3, 5, 4, 4, 4), Case((1, 2), 4, 4, 6, 5, 3, seed=8))


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on gradients."""
    yield Invariant(
        name="gradients_are_right",
        statement="Gradients are the slopes that finite differences in float64 show.",
        check=_right,
        cases=lambda subject: benign(
            subject,
            dtypes=("float64",),
            regimes=("normal", "equal_keys"),
            max_len=9,
            max_features=9,
        ),
        applies=lambda subject: None if "float64" in subject.dtypes else "float64 is not supported",
    )
    yield Invariant(
        name="long_gradients_are_right",
        statement="Gradients are right for sequences longer than a kernel's blocks, too.",
        check=_right,
        cases=lambda subject: listed(*map(subject.legal, _LONG_CASES), enough=1),
        applies=has_slopes,
    )
    yield Invariant(
        name="bias_gets_its_gradient",
        statement="A floating mask is added to the scores, and gets the gradient that they have.",
        check=_bias_right,
        cases=lambda subject: listed(*map(subject.legal, _BIAS_CASES), enough=1),
        applies=has_slopes,
    )
    yield Invariant(
        name="gradients_reach_every_parameter",
        statement="Every parameter is reached by a gradient from the scores, or from the output.",
        check=_reached,
        cases=lambda subject: listed(*map(subject.legal, _PARAMETER_CASES), enough=1),
        applies=_has_parameters,
    )
    yield Invariant(
        name="gradients_are_finite_at_extremes",
        statement="Gradients are finite wherever the output is and float64 says they can be.",
        check=_finite,
        cases=lambda subject: cases(
            subject,
            regimes=("huge", "near_overflow", "far", "tiny", "equal_keys", "zero_keys"),
            layouts=("contiguous",),
            max_len=17,
        ),
    )
    yield Invariant(
        name="kernel_gradients_equal_plain_ones",
        statement="A kernel's gradients are those of its scoring function.",
        check=_as_on_plain_path,
        cases=lambda subject: benign(subject, dtypes=("float32", "float64"), regimes=("normal",)),
        applies=lambda subject: None if subject.kind == "kernel" else "not a kernel",
    )


def has_slopes(subject: Subject) -> str | None:
    """Why slopes are not looked at where short sequences have none either."""
    if "gradients_are_right" in subject.exempt:
        return f"exempt from gradients_are_right: {subject.exempt['gradients_are_right']}"
    return None if "float64" in subject.dtypes else "float64 is not supported"


def _has_parameters(subject: Subject) -> str | None:
    if subject.kind == "kernel":
        return "kernel_gradients_equal_plain_ones looks at those of a kernel"
    case = subject.legal(Case(dtype=subject.dtypes[0]))
    module = subject.make(case.query_size, case.key_size, case.value_size)
    if any(parameter.requires_grad for parameter in module.parameters()):
        return None
    return None if any(_unregistered(module)) else "it has no parameters"
