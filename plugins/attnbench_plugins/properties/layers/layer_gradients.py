"""Invariants on a layer's backward pass: recomputed, in training, and through a cache."""

from __future__ import annotations

import torch

from attnbench import Case, InvariantViolation, RefusalError, Subject
from attnbench.errors import headline
from attnbench.testing import (
    Baseline,
    LayerCase,
    SameDraws,
    agree_within,
    any_of,
    compare_slopes,
    differentiate,
    has_no_gradients,
    has_slopes,
    layer_cases,
    leaves_of,
    reject,
)
from attnbench_plugins.properties import invariant, layer_invariant
from attnbench_plugins.properties.caches.checks import has_cache

_MASKS = ("none", "padding")


@invariant(
    kinds=("layer",),
    cases=layer_cases,
    masks=_MASKS,
    regimes=("normal",),
    dtypes=("float64",),
    applies=has_slopes,
)
def dropout_is_drawn_once(subject: Subject, case: Case) -> None:
    """In training, after the same seed, a layer gives the same output, also behind a call in
    evaluation, and its gradients are its finite differences: nothing is drawn anew in the backward
    pass.
    """
    still = Baseline(subject, case).output
    if not bool(still.isfinite().all()):
        reject("the output is not finite, of which another invariant tells")
    base = SameDraws(subject, case)
    change, other = "in training, ", "the same call after the same torch.manual_seed"
    if torch.allclose(base.output, still, rtol=0.0, atol=1e-9):
        raise RefusalError("in training it gives what it gives in evaluation: nothing is drawn")
    agree_within(base.run(base.inputs), base.output, 1e-9, f"{change}output", other)
    base.subject.output(base.module.eval(), base.inputs)
    behind = f"{change}behind a call in evaluation, output"
    agree_within(base.run(base.inputs), base.output, 1e-9, behind, other)
    inputs, named = leaves_of(base.module, base.inputs)
    if not base.run(inputs).requires_grad:
        reject("the output has no graph")
    compare_slopes(base, inputs, named, f"{change}each call after one seed, ")


@layer_invariant(
    regimes=("normal",),
    dtypes=("float32",),
    min_q_len=3,
    applies=any_of(has_no_gradients, has_cache),
)
def cached_gradients_are_right_or_stopped(layer: LayerCase) -> None:
    """Gradients through a cache equal those of one call, or a cache stops them all or makes
    autograd raise.
    """
    if layer.case.q_len < 3:
        reject("one token has no past")
    cut = 1 + layer.choose(layer.case.q_len - 2)
    hidden = layer.hidden.detach().clone().requires_grad_()
    cache = layer.subject.new_cache(layer.module, layer.case.lead[0])
    _, cache = layer.call(hidden[:, :cut], None, cache)
    output, _ = layer.call(hidden[:, cut:], None, cache)
    again = layer.hidden.detach().clone().requires_grad_()
    whole, _ = layer.call(again)
    if not whole.requires_grad:
        reject("the output has no graph")
    if not output.requires_grad:
        return  # the cache stops them all
    expected = whole[:, cut:]

    real, limits = layer.real(output), lambda: layer.rounding[:, cut:]
    if layer.differs(output.detach(), expected.detach(), real, limits) is not None:
        return  # of which another invariant tells
    weight = layer.other(output.detach())
    try:
        (got,) = differentiate(output, [hidden], weight)
    except InvariantViolation as error:
        if "modified by an inplace operation" not in str(error):
            raise
        raise RefusalError("it is written in place, where autograd raises") from error
    (want,) = differentiate(expected, [again], weight)
    if got is None or want is None:
        return
    tolerance = 1024 * torch.finfo(torch.float32).eps * max(float(want.abs().amax()), 1.0)
    change = f"with a cache that holds {cut}, the gradient of the new outputs by the"
    if bool(got[:, :cut].any()):  # a cache may stop them, those of the new keys and values too
        agree_within(got[:, :cut], want[:, :cut], tolerance, f"{change} past hidden", "one call")
        agree_within(got[:, cut:], want[:, cut:], tolerance, f"{change} new hidden", "one call")


@layer_invariant(regimes=("normal",), dtypes=("float32", "float64"), applies=has_no_gradients)
def training_steps_follow_each_other(layer: LayerCase) -> None:
    """A module as it stands gives an output and gradients twice: what a call leaves on it belongs
    to no earlier graph.
    """
    for part in layer.module.modules():
        if "keeps_graphs" in vars(part):  # it calls the layer for an adapter
            vars(part)["keeps_graphs"] = True
    for step in ("first", "second"):
        hidden = layer.hidden.detach().clone().requires_grad_()
        output, _ = layer.call(hidden, layer.mask)
        if not output.requires_grad:
            reject("its output has no graph")
        try:
            torch.autograd.backward(output.sum())
        except Exception as error:
            raise InvariantViolation(f"the {step} backward raised {headline(error)}") from error
