"""The invariant on ``same_as``: two subjects that are declared to be the same agree."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from attnbench import AttnbenchError, Case, RefusalError, Subject
from attnbench.errors import JudgementError, headline
from attnbench.strategies import CaseStrategy, cases
from attnbench.testing import (
    DTYPES,
    FREE_MASKS,
    KINDS,
    Baseline,
    LayerCase,
    differentiate,
    has_gradients,
    has_no_gradients,
    layer_cases,
    reject,
    resolve,
    same_gradient,
    same_gradients,
)
from attnbench_plugins.properties import invariant

_REGIMES = ("normal", "tiny", "equal_keys", "zero_keys")


def _other(subject: Subject) -> Subject:
    """The subject that it is the same as."""
    address = subject.same_as
    assert address is not None
    try:
        found = resolve(address)
    except AttnbenchError as error:
        raise JudgementError(f"same_as={address!r}: {error}") from error
    # a scoring function or a kernel stands for the soft attention that is made of it
    is_layer = subject.kind == "layer"
    if len(found) != 1 or (found[0].kind == "layer") != is_layer:
        kinds = ", ".join(f"{other.name} ({other.kind})" for other in found)
        wanted = "layer" if is_layer else "mechanism, scoring function or kernel"
        raise JudgementError(f"same_as={address!r} should be one {wanted}, but is {kinds}.")
    return found[0]


def _loaded(subject: Subject, module: nn.Module, case: Case) -> nn.Module:
    """A module of the other subject with this one's state."""
    try:
        made = subject.made(case, case.seed + 1)
        made.load_state_dict(module.state_dict(), strict=True)
    except Exception as error:
        message = " ".join(str(error).split())
        raise JudgementError(
            f"{subject.name}, which same_as names, does not load this one's state_dict: "
            f"{type(error).__name__}: {message}"
        ) from error
    return made


def _names_another(subject: Subject) -> str | None:
    return None if subject.same_as else "names no other subject that it is the same as"


def _cases(subject: Subject) -> CaseStrategy:
    if subject.kind == "layer":
        return layer_cases(subject, masks=("none", "padding"), dtypes=DTYPES, max_len=40)
    return cases(
        subject,
        masks=FREE_MASKS,
        dtypes=DTYPES,
        max_len=300,
        regimes=_REGIMES,
        variants={"graph": (True, False)},
    )


@invariant(cases=_cases, applies=_names_another, kinds=KINDS)
def agrees_with_same_as(subject: Subject, case: Case) -> None:
    """The output, and its gradients, are those of the subject that same_as names, with the same
    state_dict, wherever both take a case.
    """
    other = _other(subject)
    if case.dtype not in other.dtypes or other.legal(case) != case:
        reject(f"{other.name} takes no such sizes or dtype")
    if subject.kind == "layer":
        _same_layer(LayerCase(subject, case), LayerCase(other, case))
        return
    if (reason := other.unsupported(case)) is not None:
        raise RefusalError(f"{other.name}: {reason}")
    base = Baseline(subject, case)
    aligned = subject.conventions.causal == other.conventions.causal
    if base.inputs.is_causal and not aligned and case.q_len != case.kv_len:
        reject("their conventions align causality differently")
    there = Baseline(other, case).on(base.inputs.replace(causal=other.inputs(case).causal))
    there.module = _loaded(other, base.module, case)
    graph = case.variant("graph", True)
    with torch.set_grad_enabled(graph):  # a fast path may be taken without gradients
        expected, _ = _told_of(other, lambda: there.output), base.output
    if base.eps >= there.eps:  # who rounds more coarsely has the budget
        base.expect(expected, f"output of {other.name}", f"that of {subject.name}")
    else:
        there.expect(base.output, f"output of {subject.name}", f"that of {other.name}")
    if graph and has_gradients(subject, case) and has_gradients(other, case):
        _same_gradients(base, there)


def _same_layer(layer: LayerCase, there: LayerCase) -> None:
    """Compare one call without a cache; how calls may be cut is what other invariants hold."""
    there.module = _loaded(there.subject, layer.module, layer.case)
    there.hidden, there.mask = layer.hidden, layer.mask
    real = layer.real(layer.hidden, layer.mask)
    expected = _told_of(there.subject, lambda: there.run(layer.hidden, layer.mask))
    got = layer.run(layer.hidden, layer.mask)
    dtype = got.dtype  # who rounds more coarsely has the budget
    judge = layer if layer.subject.eps(dtype) >= there.subject.eps(dtype) else there
    change = f"{there.subject.name}, which same_as names,"
    judge.expect(got, expected, real, "output", change)
    if has_no_gradients(layer.subject) or has_no_gradients(there.subject):
        return
    weight, gradients = layer.other(got), []
    for side in (there, layer):
        hidden = layer.hidden.detach().clone().requires_grad_()
        output, _ = side.call(hidden, layer.mask)
        if not output.requires_grad:
            reject("one of the two has no graph here")
        output = torch.where(real, output, torch.zeros_like(output))
        gradients.append(differentiate(output, [hidden], weight)[0])
    eps = 4 * torch.finfo(dtype).eps
    same_gradient(gradients[1], gradients[0], "gradient by hidden", change, eps=eps)


def _told_of(subject: Subject, call: Callable[[], torch.Tensor]) -> torch.Tensor:
    """The output of the other subject; its exceptions are reported as its own."""
    try:
        return call()
    except (RefusalError, JudgementError):
        raise
    except Exception as error:
        raise JudgementError(
            f"{subject.name}, which same_as names, raised {headline(error)}"
        ) from error


def _same_gradients(base: Baseline, there: Baseline) -> None:
    given = base.inputs.map(lambda tensor: tensor.detach().requires_grad_())
    leaves = {name: getattr(given, name) for name in given.floating}
    expected, got = base.run(given), there.run(given.replace(causal=there.inputs.causal))
    if not (expected.requires_grad and got.requires_grad):
        reject("one of the two has no graph here")
    weight, (one, two) = base.other(base.output), (base.subject.name, there.subject.name)
    same_gradients(got, expected, leaves, weight, two, one, eps=max(base.eps, there.eps))
