"""Invariants on how a subject is run: what a call leaves behind, modes, layouts and copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnbench.cases import LAYOUTS, Case
from attnbench.errors import InvariantViolation
from attnbench.hookspecs import hookimpl
from attnbench.inputs import Inputs, lay_out, make_inputs
from attnbench.invariants.baseline import Baseline
from attnbench.invariants.compare import agree_within, needs, reject
from attnbench.invariants.deriving import benign
from attnbench.specs import Invariant
from attnbench.strategies import cases, listed
from attnbench.subject import Subject

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

__all__: list[str] = []


def _memory(tensor: Tensor) -> Tensor:
    """All of the memory that a tensor is a view of, as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _inputs_are_unchanged(subject: Subject, case: Case) -> None:
    module, inputs = subject.build(case)
    before = {name: (tensor.clone(), _memory(tensor).clone()) for name, tensor in inputs.tensors()}
    for mode in ("evaluation", "training"):
        subject.output(module.train(mode == "training"), inputs)
        for name, tensor in inputs.tensors():
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
                    compared={"got": tensor, "expected": values, "place": place, "tolerance": 0.0},
                )
            raise InvariantViolation(
                f"the call in {mode} mode wrote to memory beside {name}, which is a view "
                f"({case.layout}) of a larger tensor of the caller's, but should change none of it"
            )


def _calls_leave_no_trace(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    state = {name: tensor.clone() for name, tensor in base.module.state_dict().items()}
    first = base.output.clone()
    # the same shapes with another mask and other numbers: what a cache by shape would mix up
    other = make_inputs(case.replace(seed=case.seed + 1))
    fresh = Baseline(subject, case).on(other)
    told = "called after other inputs of the same shapes, output"
    fresh.expect(base.run(other), told, "a new module")
    free = base.inputs.replace(attn_mask=None, valid_lens=None, is_causal=False)
    Baseline(subject, case).on(free).expect(base.run(free), told, "a new module")
    for _ in range(2):
        base.expect(base.run(base.inputs), told, "the first call")
    agree_within(base.output, first, 0.0, "output of the first call, read again after", "it")
    for name, tensor in base.module.state_dict().items():
        if not torch.equal(tensor, state[name]):
            raise InvariantViolation(
                f"state_dict()[{name!r}] was changed by calls in evaluation mode, but should stay "
                "as it is: the same inputs would not give the same output"
            )


def _layouts_agree(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    plain = base.on(base.inputs.map(lambda tensor: tensor.contiguous()))
    plain.expect(
        base.output,
        f"with {case.layout} query, key and value, output",
        "the same call with contiguous ones",
    )
    mask = base.inputs.attn_mask
    if mask is not None:
        got = base.run(base.inputs.replace(attn_mask=lay_out(mask, "transposed")))
        plain.expect(
            got, "with a transposed attn_mask, output", "the same call with a contiguous one"
        )


def _gradients(base: Baseline, inputs: Inputs, handed: Tensor) -> list[Tensor]:
    leaves = inputs.map(lambda tensor: tensor.detach().requires_grad_())
    named = [leaves.query, leaves.key, leaves.value]
    named += [p for p in base.module.parameters() if p.requires_grad]
    output = base.run(leaves)
    found = torch.autograd.grad(output, named, handed, allow_unused=True)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(named, found, strict=True)]


def _gradient_layouts_agree(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    names = ["query", "key", "value"]
    names += [f"parameter {n}" for n, p in base.module.named_parameters() if p.requires_grad]
    weight = torch.randn(base.output.shape, generator=base.generator).to(base.output)
    if case.seed // len(LAYOUTS) % 2:  # so that every scheduled layout meets both
        way, given, even = "a transposed gradient,", lay_out(weight, "transposed"), weight
    else:
        even = torch.ones_like(weight)
        way = "an expanded gradient of ones, as .sum() hands in,"
        given = even.new_ones(()).expand(even.shape)
    plain = base.inputs.map(lambda tensor: tensor.contiguous())
    found, expected = _gradients(base, base.inputs, given), _gradients(base, plain, even)
    for name, got, should in zip(names, found, expected, strict=True):
        _alike(got, should, f"handed {way} the gradient by {name}", "the same call all contiguous")


def _alike(got: Tensor, expected: Tensor, what: str, other: str) -> None:
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    tolerance = 256 * torch.finfo(got.dtype).eps * max(scale, 1.0)
    agree_within(got, expected, tolerance, what, other)


def _gradient_modes_agree(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    with torch.no_grad():
        base.expect(base.run(base.inputs), "under no_grad, output", "the call outside")
    with torch.inference_mode():
        got = base.run(base.inputs)
    base.expect(got.clone(), "under inference_mode, output", "the call outside")
    leaves = base.inputs.map(lambda tensor: tensor.detach().requires_grad_())
    got = base.run(leaves).detach()
    base.expect(got, "with inputs that require gradients, output", "the same call without")


def _training_agrees(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    expected = base.output
    base.module.train()
    torch.default_generator.manual_seed(case.seed)  # every device's takes longer than the call
    got = base.run(base.inputs)
    torch.default_generator.manual_seed(case.seed + 1)
    if not torch.equal(got, base.run(base.inputs)):
        reject("in training it is random")
    base.module.eval()
    assert base.output is expected
    base.expect(
        got, "in training mode, without dropout, output", "the same call in evaluation mode"
    )


def _no_dropout_in_evaluation(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    for share in (0.5, 0.9):
        got = base.run(base.inputs.replace(dropout_p=share))
        base.expect(
            got, f"in evaluation mode, with dropout_p={share}, output", "the call with dropout_p=0"
        )


def _weights_before_dropout(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    base.module.train()
    expected = needs(subject.weights(base.module, base.inputs))
    got = needs(subject.weights(base.module, base.inputs.replace(dropout_p=0.5)))
    tolerance = 16 * torch.finfo(got.dtype).eps
    what = "in training mode, with dropout_p=0.5, weights handed back"
    agree_within(got, expected, tolerance, what, "the call with dropout_p=0")


def _asked_for_weights(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    got, _ = subject.output_and_weights(base.module, base.inputs)
    base.expect(got, "with return_weights=True, output", "the call without")
    if "dropout_p" not in subject.accepts:
        return
    base.module.train()
    plain = base.on(base.inputs).output
    dropped = base.inputs.replace(dropout_p=0.5)
    # each has fifteen weights or more: that all are kept in all calls does not happen by chance
    calls = [subject.output_and_weights(base.module, dropped)[0] for _ in range(8)]
    if all(torch.equal(output, plain) for output in calls):
        raise InvariantViolation(
            "in training mode with dropout_p=0.5 and return_weights=True, output = that without "
            f"dropout in each of {len(calls)} calls, but should differ: nothing is dropped"
        )


def _gives_weights(subject: Subject) -> str | None:
    return None if "return_weights" in subject.accepts else "hands back no weights"


def _takes_dropout_and_gives_weights(subject: Subject) -> str | None:
    if "return_weights" not in subject.accepts:
        return "hands back no weights"
    return takes_dropout(subject)


def takes_dropout(subject: Subject) -> str | None:
    """Why dropout says nothing of a subject; ``None`` if it takes ``dropout_p``."""
    return None if "dropout_p" in subject.accepts else "does not accept dropout_p"


def _copies_agree(subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    for way, copied in (
        ("deepcopy", copy.deepcopy),
        ("pickle", lambda module: pickle.loads(pickle.dumps(module))),  # noqa: S301 -- our own
        (
            "a state_dict saved, loaded into a module that has been called,",
            lambda _: _reloaded(base),
        ),
    ):
        if way == "pickle" and any(
            "<locals>" in type(m).__qualname__ for m in base.module.modules()
        ):
            continue  # nothing could pickle a class that was defined inside a function
        try:
            module = copied(base.module)
        except (RuntimeError, TypeError, AttributeError, pickle.PicklingError) as error:
            raise InvariantViolation(
                f"{way} of the module raised {type(error).__name__}: {error}; a module keeps "
                "functions that have a name in their file, no lambdas, to be saved and copied"
            ) from None
        places = {p.data_ptr() for p in module.parameters() if p.numel()}
        for name, parameter in base.module.named_parameters():
            if parameter.data_ptr() in places:
                raise InvariantViolation(
                    f"after {way} the copy's {name} is the module's own, but should be another "
                    "tensor: who trains one would change the other"
                )
        with torch.no_grad():  # the mode in which something may be kept from call to call
            got = subject.output(module.eval(), base.inputs)
        base.expect(got, f"after {way} output", "the module itself")


def _reloaded(base: Baseline) -> nn.Module:
    case, state = base.case, base.module.state_dict()
    if case.seed % 4 == 0:  # a file takes longer than all else here
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        state = torch.load(file, weights_only=True)
    # other initial parameters, which the saved ones replace
    torch.default_generator.manual_seed(case.seed + 1)
    module = base.subject.make(case.query_size, case.key_size, case.value_size)
    module = module.to(dtype=getattr(torch, case.dtype), device=case.device).eval()
    with torch.no_grad():  # what it keeps of a call with other parameters is stale from here on
        base.subject.output(module, base.inputs)
    module.load_state_dict(state)
    return module


_MASKS = ("none", "boolean", "floating", "padding", "causal")


_WEIGHT_CASES = (
    Case((2, 3), 4, 6, 8, 6, 5, mask="boolean"),
    Case((2,), 3, 5, mask="none", seed=1),
    Case((2,), 3, 5, mask="causal", seed=2),
    Case((1,), 40, 40, mask="floating", seed=3),
)


def _few(subject: Subject, **narrowed: Any) -> SearchStrategy[Case]:
    """Cases of one mask of each sort: how a subject is run has little to do with the rest."""
    return benign(subject, **{"masks": _MASKS, "regimes": ("normal",), **narrowed})


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """The invariants on how a subject is run."""
    yield Invariant(
        name="inputs_are_unchanged",
        statement="A call changes neither its inputs nor the memory that they are views of.",
        check=_inputs_are_unchanged,
        cases=lambda subject: cases(subject, max_len=65, masks=_MASKS),
    )
    yield Invariant(
        name="calls_leave_no_trace",
        statement="The same inputs give the same output after any other calls.",
        check=_calls_leave_no_trace,
        cases=_few,
    )
    yield Invariant(
        name="layouts_agree",
        statement="Strides and offsets of the inputs do not change the output.",
        check=_layouts_agree,
        cases=lambda subject: _few(
            subject, layouts=tuple(name for name in LAYOUTS if name != "contiguous")
        ),
    )
    yield Invariant(
        name="gradient_layouts_agree",
        statement="Strides of the inputs and of the gradient handed in do not change gradients.",
        check=_gradient_layouts_agree,
        cases=lambda subject: _few(
            subject, layouts=tuple(LAYOUTS), regimes=("normal",), dtypes=("float64", "float32")
        ),
    )
    yield Invariant(
        name="gradient_modes_agree",
        statement="With gradients, under no_grad and under inference_mode the output is the same.",
        check=_gradient_modes_agree,
        cases=_few,
    )
    yield Invariant(
        name="training_equals_evaluation",
        statement="Without dropout, training and evaluation give the same output.",
        check=_training_agrees,
        cases=_few,
    )
    yield Invariant(
        name="no_dropout_in_evaluation",
        statement="Dropout is active in training only.",
        check=_no_dropout_in_evaluation,
        cases=_few,
        applies=takes_dropout,
    )
    yield Invariant(
        name="weights_are_those_before_dropout",
        statement="The weights handed back are those before dropout.",
        check=_weights_before_dropout,
        cases=_few,
        applies=_takes_dropout_and_gives_weights,
    )
    yield Invariant(
        name="asking_for_weights_changes_nothing",
        statement="The output beside the weights is that without them, and has dropout as well.",
        check=_asked_for_weights,
        cases=lambda subject: listed(*map(subject.legal, _WEIGHT_CASES), enough=1),
        applies=_gives_weights,
    )
    yield Invariant(
        name="copies_agree",
        statement="state_dict, deepcopy and pickle keep all that determines the output.",
        check=_copies_agree,
        cases=lambda subject: _few(subject, max_len=5, max_features=8),
    )
