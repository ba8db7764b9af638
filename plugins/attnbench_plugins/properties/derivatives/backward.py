"""Invariants on the backward pass: other gradients and earlier calls do not affect it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from attnbench import Case, InvariantViolation, Subject
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import (
    ORDINARY_MASKS,
    Baseline,
    any_of,
    differentiate,
    has_no_gradients,
    leaves_of,
    reject,
    same_gradient,
)
from attnbench_plugins.properties import invariant

_CASES = Case((2, 3), 4, 6, 8, 6, 5), Case((1,), 33, 40, 16, 16, 16), Case((2,), 1, 5)

_SQUARE = Case((2,), 5, 5), Case((1, 2), 12, 12, 8, 8, 8), Case((1,), 33, 33, 16, 16, 16)

_WIDE = ("float64", "float32")
_REUSES_MEMORY = "requires create_graph=False and retain_graph=False"
"""Torch's message on a second pass through compiled code, whose memory the first pass has freed."""


def _gradients(
    base: Baseline, wanted: Iterable[str], weight: Tensor, *, twice: bool = False
) -> tuple[Tensor, list[dict[str, Tensor | None]]]:
    """The output and the gradients, when only ``wanted`` leaves require one; optionally twice."""
    names = list(wanted)
    given, leaves = leaves_of(base.module, base.inputs)
    try:
        for name, leaf in leaves.items():
            leaf.requires_grad_(name in names)
        output = base.run(given)
        if not output.requires_grad:
            raise InvariantViolation(
                f"where {', '.join(names)} alone requires a gradient, output.requires_grad = "
                "False, but should be True: what it depends on is cut off from the graph"
            )
        found = [
            differentiate(
                output, [leaves[name] for name in names], weight, retain_graph=twice and not done
            )
            for done in range(1 + twice)
        ]
    finally:
        for leaf in leaves.values():
            leaf.requires_grad_()
    return output.detach(), [dict(zip(names, one, strict=True)) for one in found]


def _names(base: Baseline) -> list[str]:
    return list(leaves_of(base.module, base.inputs)[1])


@invariant(
    cases=lambda subject: _some(subject, _CASES, 16, which=range(16)), applies=has_no_gradients
)
def gradients_alone_equal_gradients_together(subject: Subject, case: Case) -> None:
    """Output and gradients are the same whether or not other tensors require a gradient."""
    base = Baseline(subject, case)
    weight, names = base.other(base.output), _names(base)
    _, (together,) = _gradients(base, names, weight)
    name = names[case.variant("which", 0) % len(names)]
    gradient = together[name]
    if gradient is None or not bool(gradient.any()):
        reject("it has no gradient")
    output, (alone,) = _gradients(base, [name], weight)
    base.expect(output, f"where {name} alone requires a gradient, output", "the call without any")
    same_gradient(
        alone[name],
        gradient,
        f"where nothing else requires one, the gradient by {name}",
        "that where all do",
        eps=base.eps,
    )


@invariant(cases=lambda subject: _some(subject, _CASES, 8), applies=has_no_gradients)
def backward_leaves_no_trace(subject: Subject, case: Case) -> None:
    """A backward pass changes neither the output nor what a second one gives."""
    base = Baseline(subject, case)
    names = _names(base)
    weight = base.other(base.output)
    try:
        output, (first, second) = _gradients(base, names, weight, twice=True)
    except InvariantViolation as violation:
        if _REUSES_MEMORY not in str(violation):
            raise
        output, (first,) = _gradients(base, names, weight)
        second = first
    base.expect(output, "after its backward pass, output", "the call without one")
    for name in names:
        same_gradient(
            second[name],
            first[name],
            f"of a second backward pass, the gradient by {name}",
            "that of the first",
            eps=base.eps,
        )
    wider = case.replace(query_size=2 * case.query_size, key_size=2 * case.key_size)
    others = {
        "another call": base.on(subject.inputs(case.replace(seed=case.seed + 1))),
        "a call of another module, of other sizes": Baseline(
            subject, subject.legal(wider.replace(seed=case.seed + 2))
        ),
    }
    for what, other in others.items():
        inputs, leaves = leaves_of(base.module, base.inputs)
        output = base.run(inputs)
        other.run(other.inputs.map(Tensor.requires_grad_))
        late = differentiate(output, list(leaves.values()), weight)
        for name, gradient in zip(leaves, late, strict=True):
            change = f"with {what} before the backward pass, the gradient by {name}"
            same_gradient(gradient, first[name], change, "that without", eps=base.eps)


def _takes_one_shape(subject: Subject) -> str | None:
    sizes = subject.legal(_SQUARE[0]).sizes
    same = sizes.q_len == sizes.kv_len and sizes.query_size == sizes.key_size == sizes.value_size
    return None if same else "query, key and value are never of one shape"


@invariant(
    cases=lambda subject: _some(subject, _SQUARE, 8),
    applies=any_of(has_no_gradients, _takes_one_shape),
)
def one_tensor_equals_three_copies(subject: Subject, case: Case) -> None:
    """One tensor, or views of it, as query, key and value gives what copies of it give."""
    base = Baseline(subject, case)
    shapes = {getattr(base.inputs, name).shape for name in ("query", "key", "value")}
    if len(shapes) > 1:
        reject("its sizes are not to be equal")
    copies = {
        name: base.inputs.query.clone().requires_grad_() for name in ("query", "key", "value")
    }
    separate = base.run(base.inputs.replace(**copies))
    both = base.on(base.inputs.replace(**{n: t.detach() for n, t in copies.items()}))
    one = base.inputs.query.clone().requires_grad_()
    same = base.run(base.inputs.replace(query=one, key=one, value=one))
    both.expect(same.detach(), "with one tensor for query, key and value, output", "three copies")
    weight = base.other(base.output)
    total, got = torch.zeros_like(one), torch.zeros_like(one)
    for gradient in differentiate(separate, list(copies.values()), weight):
        total = total if gradient is None else total + gradient
    for gradient in differentiate(same, [one], weight):
        got = got if gradient is None else gradient
    what = "with one tensor for query, key and value, its gradient"
    if not bool(total.isfinite().all()) and _is_finite_apart(base, weight):
        raise InvariantViolation(
            "where query and key hold the same numbers, a gradient is not finite; where they hold "
            "other numbers, all are"
        )
    same_gradient(got, total, what, "those of three copies together", eps=base.eps)
    whole = base.inputs.query
    first = whole[..., :1, :].expand_as(whole)  # at the same address, and not the same
    for name in ("key", "value"):
        views = base.inputs.replace(**{"key": whole, "value": whole, name: first})
        base.on(views.map(torch.clone)).expect(
            base.run(views),
            f"with a tensor as query, and its first row, expanded, as {name}, output",
            "copies of them",
        )


def _is_finite_apart(base: Baseline, weight: Tensor) -> bool:
    """Whether gradients are finite with a query that no key equals."""
    leaves = [t.clone().requires_grad_() for t in (base.inputs.query, *[base.inputs.key] * 2)]
    apart = base.run(base.inputs.replace(query=leaves[0], key=leaves[1], value=leaves[2]))
    found = differentiate(apart, leaves, weight)
    return all(gradient is None or bool(gradient.isfinite().all()) for gradient in found)


def _some(
    subject: Subject, cases: Sequence[Case], count: int, **variants: Sequence[int]
) -> CaseStrategy:
    """A few cases, since these errors do not depend on sizes and values."""
    made = (
        cases[n % len(cases)].replace(
            dtype=_WIDE[n % 2], mask=ORDINARY_MASKS[n % len(ORDINARY_MASKS)], seed=n
        )
        for n in range(count)
    )
    return listed(*map(subject.legal, made), enough=1, variants=variants)
