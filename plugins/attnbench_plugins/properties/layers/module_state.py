"""Invariants on what a module keeps: nothing of earlier calls, or of other modules."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnbench import Case, Subject
from attnbench.strategies import CaseStrategy, listed
from attnbench.testing import KINDS, Baseline, LayerCase, layer_cases, state_is_kept
from attnbench_plugins.properties import invariant, layer_invariant
from attnbench_plugins.properties.layer_faults import mixes_items

_MASKS = ("none", "padding")


@layer_invariant(masks=_MASKS, regimes=("normal",))
def layer_calls_leave_no_trace(layer: LayerCase) -> None:
    """A module that was called on other inputs and masks gives what a new one gives."""
    state = {name: tensor.clone() for name, tensor in layer.module.state_dict().items()}
    calls: list[tuple[Tensor, Tensor | None]] = []
    for number in (1, 2, 3):
        case, masks = layer.case, layer.subject.masks
        mask = masks[number % len(masks)] if number < 3 else case.mask
        length = case.q_len if number < 3 else min(case.q_len + 3, layer.subject.capacity)
        other = case.replace(seed=case.seed + number, mask=mask, q_len=length, kv_len=length)
        inputs = layer.subject.inputs(layer.subject.legal(other))
        calls.append((inputs.hidden, inputs.padding_mask))
        _as_new(layer, calls)
    _as_new(layer, [*calls, (layer.hidden, layer.mask)])
    _other_weights(layer)
    state_is_kept(layer.module, state)


def _as_new(layer: LayerCase, calls: list[tuple[Tensor, Tensor | None]]) -> None:
    """Call a module that had all calls but the last, and compare it with a new one."""
    *earlier, last = calls
    got, fresh = layer.run(*last), LayerCase(layer.subject, layer.case)
    expected = fresh.run(*last)
    fresh.hidden, fresh.mask = last
    lengths = [hidden.shape[1] for hidden, _ in earlier]
    what = f"after {_in_words(lengths)}, output" if lengths else "output"
    real = layer.real(*last)
    fresh.expect(got, expected, real, what, "a new module")


def _in_words(lengths: list[int]) -> str:
    """Calls on so many tokens each."""
    counts = sorted({*lengths})
    tokens = f"{' and '.join(map(str, counts))} token{'s' * (counts != [1])}"
    return f"{'calls' if lengths[1:] else 'a call'} on {tokens}"


def _other_weights(layer: LayerCase) -> None:
    """Compare a module with other weights with its output for the same tokens in a larger batch."""
    if mixes_items(layer.subject):
        return
    other = LayerCase(layer.subject, layer.case.replace(seed=layer.case.seed + 1))
    other.hidden, other.mask = layer.hidden, layer.mask
    got = other.run(layer.hidden, layer.mask)
    hidden = torch.cat([layer.hidden, layer.other(layer.hidden[:1])])
    mask = layer.mask
    if mask is not None:
        mask = torch.cat([mask, torch.ones_like(mask[:1])])
    expected = other.run(hidden, mask)[:-1]

    def allowed() -> Tensor:  # of the larger batch: what was kept of the smaller one may be stale
        return other.limits(hidden, mask)[:-1]

    real = layer.real(layer.hidden, layer.mask)
    change = "of a module with other weights, called on the same inputs, output"
    violation = other.differs(
        got, expected, real, allowed, what=change, other="the same items in a larger batch"
    )
    if violation is not None:
        fresh = hidden.flip(-1)  # of which nothing can be kept
        alone, among = layer.run(fresh[:-1], layer.mask), layer.run(fresh, mask)[:-1]
        if layer.differs(among, alone, real, allowed) is not None:
            return  # what is kept of earlier calls is not the reason: the other item is
        raise violation


_FEW_CASES = (Case((2, 3), 4, 6, 8, 6, 5), Case((2,), 3, 5, mask="boolean", seed=1), Case(seed=2))


def _few_cases(subject: Subject) -> CaseStrategy:
    """A few small cases; what is kept does not depend on numbers."""
    if subject.kind == "layer":
        return layer_cases(subject, masks=_MASKS, regimes=("normal",), dtypes=("float32",))
    made = map(subject.legal, _FEW_CASES)
    return listed(*(case for case in made if subject.takes_mask(case.mask)), enough=1)


@invariant(kinds=KINDS, cases=_few_cases)
def other_modules_change_nothing(subject: Subject, case: Case) -> None:
    """Making and calling another module of another size changes no output."""
    base = Baseline(subject, case)
    expected = base.output
    others = (
        case.replace(query_size=2 * case.query_size, key_size=2 * case.key_size),
        case.replace(value_size=2 * case.value_size),
        case.replace(lead=tuple(size + 2 for size in case.lead), kv_len=case.kv_len + 3),
    )
    for number, other in enumerate(others, 1):
        other = subject.legal(other.replace(seed=case.seed + number))
        if (other.sizes, other.kv_len) == (case.sizes, case.kv_len):
            continue
        _ = Baseline(subject, other).output
        sizes = f"Eq={other.query_size}, Ek={other.key_size}, Ev={other.value_size}"
        change = f"after a module of {sizes} was made, and called with leading sizes {other.lead},"
        base.repeat(f"{change} output", "the same call before")
    assert base.output is expected


def _has_no_parameters(subject: Subject) -> str | None:
    if subject.kind == "layer":
        return None
    module, _ = subject.build(subject.legal(Case()))
    return None if any(True for _ in module.parameters()) else "it has no parameters"


@invariant(kinds=KINDS, cases=_few_cases, applies=_has_no_parameters)
def changed_parameters_are_used(subject: Subject, case: Case) -> None:
    """After a step of its parameters a module gives what one that had them from the start gives."""
    base, fresh = Baseline(subject, case), Baseline(subject, case)
    base.run(base.inputs)
    for one in (base, fresh):
        _step(one.module, case.seed)

    fresh.expect(
        base.run(base.inputs),
        "after a call and a step of all parameters, output",
        "a module with these parameters from the start",
    )


def _step(module: nn.Module, seed: int) -> None:
    """Change each parameter by half of its mean size."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for old in module.parameters():
            if old.is_floating_point():
                step = torch.randn(old.shape, generator=generator).to(old) * old.abs().mean() / 2
                old.add_(step)
