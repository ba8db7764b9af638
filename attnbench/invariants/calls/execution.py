"""Invariants on side effects of a call, and on the modes in which it runs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import InvariantViolation, RefusalError, message_of
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import agree_within, state_is_kept
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import ORDINARY_MASKS, ordinary, placed_at
from attnbench.specs import KINDS
from attnbench.subject.devices import generator_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


def _memory(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _uses_the_batch(module: nn.Module) -> bool:
    """Whether training norms by the mean of a batch, by design, and refuses a batch of one row."""
    return any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules())


@invariant(
    kinds=KINDS,
    max_len=65,
    masks=(*ORDINARY_MASKS, "empty_row"),
    variants={"scale": ("own", "given"), "gradients": (True, False)},
)
def inputs_are_unchanged(subject: Subject, case: Case) -> None:
    """A call changes neither its inputs nor the memory that they are views of, and gives no part of
    them back.
    """
    module, inputs = subject.build(case)
    before = {name: (tensor.clone(), _memory(tensor).clone()) for name, tensor in inputs.tensors()}
    if "scale" in subject.accepts and case.variant("scale", "own") == "given":
        inputs = inputs.replace(scale=0.3)
    for mode in ("evaluation", *([] if _uses_the_batch(module) else ["training"])):
        module.train(mode == "training")
        # what runs without a graph is the first to save memory
        with torch.set_grad_enabled(case.variant("gradients", True)):
            output = subject.output(module, inputs)
        for name, tensor in inputs.tensors():
            if output.numel() and output.data_ptr() == tensor.data_ptr():
                raise InvariantViolation(
                    f"output of the call in {mode} mode is memory of {name}, but should be its "
                    "own: who changes the one in place would change the other"
                )
            values, memory = before[name]
            if torch.equal(_memory(tensor), memory):
                continue
            changed = (tensor != values) & ~(tensor.isnan() & values.isnan())
            if bool(changed.any()):
                place = changed.nonzero()[0].tolist()
                now, then = tensor[tuple(place)].item(), values[tuple(place)].item()
                raise InvariantViolation(
                    f"{name}{place} = {now:.6g} after the call in {mode} mode, but should be "
                    f"{then:.6g} as before it: the caller's tensor was changed in place",
                    quantity=name,
                    place=place,
                    got=now,
                    expected=then,
                    allowed=0.0,
                    compared={"got": tensor, "expected": values},
                )
            raise InvariantViolation(
                f"the call in {mode} mode wrote to memory beside {name}, which is a view "
                f"({case.layout}) of a larger tensor of the caller's, but should change none of it"
            )


@invariant(cases=ordinary, variants={"other": ("equal", "turned", "longer", "shorter", "square")})
def calls_leave_no_trace(subject: Subject, case: Case) -> None:
    """The same inputs give the same output after any other calls."""
    base = Baseline(subject, case)
    state = {name: tensor.clone() for name, tensor in base.module.state_dict().items()}
    generator = generator_of(case.device)
    drawn = generator.get_state()
    first = base.output.clone()
    if not torch.equal(generator.get_state(), drawn):
        raise InvariantViolation(
            "a call in evaluation mode drew numbers from torch's global generator, but should "
            "draw none: whoever seeds it gets other numbers after the call than without it"
        )
    change = "called after other inputs of the same shapes, output"
    # the same shapes with another mask and other numbers: what a cache by shape would mix up; the
    # second ones lie where the first lay
    places: dict[str, bytearray] = {}
    calls = []
    for number in (1, 2):
        other = placed_at(places, subject.inputs(case.replace(seed=case.seed + number)))
        with torch.no_grad():
            output = base.run(other)
        calls.append((other.map(torch.clone), output, output.clone()))
        del other
    for other, output, kept in calls:
        what = "under no_grad, when read again after the next call, output"
        agree_within(output, kept, 0.0, what, "the same output at first")
        fresh = Baseline(subject, case).on(other)
        with torch.no_grad():
            fresh.expect(output, change, "a new module")
        del other, fresh
    unlike = subject.inputs(_unlike(subject, case))
    fresh, output = Baseline(subject, case).on(unlike), base.run(unlike)
    fresh.expect(output, "called after other inputs, output", "a new module")
    if base.inputs.is_causal:
        part = torch.rand(case.q_len, case.kv_len, generator=base.generator) < 0.5
        base.run(base.inputs.replace(attn_mask=part.to(case.device)))
    base.repeat(change, "the first call")
    edited = _hiding_nothing(subject.inputs(case.replace(seed=case.seed + 3)))
    with torch.no_grad():
        base.run(edited)
        for name, tensor in base.inputs.tensors():
            getattr(edited, name).copy_(tensor)
        base.expect(
            base.run(edited),
            "called again after its tensors were changed in place, output",
            "a call with other tensors of the same values",
        )
    agree_within(base.output, first, 0.0, "output of the first call, read again after", "it")
    state_is_kept(base.module, state)


def _hiding_nothing(inputs: Inputs) -> Inputs:
    """Copies of the inputs, whose mask and lengths leave every key to every query."""
    mask, lens = inputs.attn_mask, inputs.valid_lens
    if mask is not None:
        mask = torch.ones_like(mask) if mask.dtype == torch.bool else torch.zeros_like(mask)
    if lens is not None:
        lens = torch.full_like(lens, inputs.key.shape[-2])
    return inputs.map(torch.clone).replace(attn_mask=mask, valid_lens=lens)


def _unlike(subject: Subject, case: Case) -> Case:
    """Another call: no mask, as many pairs in another shape, longer, shorter, or made square."""
    most = max(case.q_len, case.kv_len)
    shapes: dict[str, dict[str, Any]] = {
        "equal": {"mask": "none"},
        "turned": {"q_len": case.kv_len, "kv_len": case.q_len, "mask": "none"},
        "longer": {"kv_len": case.kv_len + 70, "mask": "none"},
        "shorter": {"q_len": max(1, case.q_len - 1)},
        "square": {"q_len": most, "kv_len": most, "mask": "none"},
    }
    shape = shapes[case.variant("other", "equal")]
    other = case.replace(**shape)
    return other if subject.legal(other) == other else case.replace(mask="none")


@invariant(
    kinds=KINDS,
    cases=ordinary,
    masks=(*ORDINARY_MASKS, "lengths_2d"),
    beyond=(Case((1,), 37, 1100, mask="causal"),),
)
def gradient_modes_agree(subject: Subject, case: Case) -> None:
    """With gradients, under no_grad and under inference_mode the output is the same."""
    base = Baseline(subject, case)
    with torch.inference_mode():  # first of all: what is kept of it could have no gradient
        got = base.run(base.inputs)
    try:
        _other_modes_agree(base, got.clone())
    except RuntimeError as error:
        if "nference tensor" not in str(error):
            raise
        raise InvariantViolation(
            "after a call under inference_mode, the same call outside raised RuntimeError: "
            f"{message_of(error)}: what is kept from call to call should be no "
            "inference tensor"
        ) from error


def _other_modes_agree(base: Baseline, got: Tensor) -> None:
    base.expect(got, "under inference_mode, output", "the call outside")
    with torch.no_grad():
        base.expect(base.run(base.inputs), "under no_grad, output", "the call outside")
    if not base.subject.conventions.gradients:
        return
    leaves = base.inputs.map(lambda tensor: tensor.detach().requires_grad_())
    got = base.run(leaves).detach()
    base.expect(got, "with inputs that require gradients, output", "the same call where none does")


@invariant(kinds=KINDS, cases=ordinary, variants={"scale": ("own", "given")})
def training_equals_evaluation(subject: Subject, case: Case) -> None:
    """Without dropout, training and evaluation give the same output."""
    base = Baseline(subject, case)
    note = ""
    if "scale" in subject.accepts and case.variant("scale", "own") == "given":
        base, note = base.on(base.inputs.replace(scale=0.3)), " and with scale=0.3"
    expected = base.output
    if _uses_the_batch(base.module):
        raise RefusalError("in training its BatchNorm uses the mean of the batch")
    base.module.train()
    generator = generator_of(case.device)
    generator.manual_seed(case.seed)
    state = generator.get_state()
    got = base.run(base.inputs)
    # few units, each of which is seldom dropped, often give the same twice
    drew = not torch.equal(got, expected) and not torch.equal(state, generator.get_state())
    generator.manual_seed(case.seed + 1)
    if drew or not torch.equal(got, base.run(base.inputs)):
        raise RefusalError("in training it is random")
    base.module.eval()
    assert base.output is expected
    base.expect(
        got,
        f"in training mode, without dropout{note}, output",
        "the same call in evaluation mode",
    )
    base.repeat("in evaluation mode after calls in training mode, output", "that before")
