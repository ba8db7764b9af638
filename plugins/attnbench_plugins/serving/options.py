"""The invariants on the options that callers use: windows, soft caps, sinks and ALiBi's slopes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Inputs, Invariant, InvariantViolation, Subject, hookimpl
from attnbench.testing import (
    Baseline,
    agree_within,
    benign,
    change_by_moves,
    fails,
    grouped,
    has_gradients,
    is_textbook,
    largest,
    reject,
    same_gradients,
    stages_of,
    textbook_output,
)

_DROPPED = 0.5
_DRAWS = 8

_WINDOWS = {
    "behind": (1, -1),
    "ahead": (-1, 1),
    "both": (2, 1),
    "own": (0, 0),
    "past": (2, 0),
    "wide": (4096, 0),  # no limit at one side, and one at the other
    "tile": (20, 5),  # whole tiles of keys lie within it for some rows of a tile of queries
}
_CAPS = {"tight": 0.5, "usual": 5.0, "loose": 50.0}
_SIZES = {"usual": 1.0, "large": 8.0, "none": 0.0}
_KINDS: Mapping[str, tuple[str, ...]] = {
    "window_size": tuple(_WINDOWS),
    "softcap": tuple(_CAPS),
    "sinks": ("usual", "large"),
    "alibi_slopes": ("usual", "none"),
}


def _value(option: str, kind: str, inputs: Inputs, generator: torch.Generator) -> Any:
    """An option's value, for as many heads as the query has."""
    if option == "window_size":
        return _WINDOWS[kind]
    if option == "softcap":
        return _CAPS[kind]
    drawn = torch.randn(inputs.query.shape[-3], generator=generator) * _SIZES[kind]
    drawn = drawn.to(inputs.query.device)
    return drawn.to(inputs.query.dtype) if option == "sinks" else drawn.abs()


def _given(option: str, base: Baseline) -> Inputs:
    """The inputs with the option and the other options of the case."""
    case, accepts = base.case, base.subject.accepts
    inputs = grouped(base.inputs) if case.variant("heads", "own") == "grouped" else base.inputs
    found = {option: case.variant("kind", _KINDS[option][0])}
    if case.variant("beside", "nothing") == "others":
        found |= {name: kinds[0] for name, kinds in _KINDS.items() if name in accepts} | found
    values = {name: _value(name, kind, inputs, base.generator) for name, kind in found.items()}
    if case.variant("beside", "nothing") == "others" and "scale" in accepts:
        values["scale"] = -0.7
    return inputs.replace(**values)


def _told(option: str, inputs: Inputs) -> str:
    names = [option, *(n for n in (*_KINDS, "scale") if n != option)]
    given = {name: getattr(inputs, name) for name in names}
    shown = {n: v.tolist() if isinstance(v, Tensor) else v for n, v in given.items()}
    return "with " + ", ".join(f"{n}={_short(v)}" for n, v in shown.items() if v is not None)


def _short(value: Any) -> str:
    return f"[{', '.join(f'{v:.3g}' for v in value)}]" if isinstance(value, list) else str(value)


def _tolerance(base: Baseline, inputs: Inputs, right: Tensor) -> Tensor:
    """The change from moving query, key and value by one unit in the last place, with a margin."""
    wide = inputs.map(lambda tensor: tensor.cpu().double())
    change = change_by_moves(
        lambda move: textbook_output(wide.map(move)), right, [base.eps] * _DRAWS
    )
    return 8 * change.amax(-1, keepdim=True) + 16 * base.eps * largest(inputs.value)


def _holds(option: str, subject: Subject, case: Case) -> None:
    base = Baseline(subject, case)
    inputs = _given(option, base)
    try:
        _agrees(option, base, inputs)
    except InvariantViolation:
        others = [n for n in (*_KINDS, "scale") if getattr(inputs, n) is not None and n != option]
        if not others:
            raise
        if fails(_agrees, others[0], base, inputs.replace(**{option: None})):
            reject("the options beside it are wrong without it, too")  # theirs report it
        raise


def _agrees(option: str, base: Baseline, inputs: Inputs) -> None:
    subject, case = base.subject, base.case
    with torch.no_grad():
        stages = stages_of(inputs)
        right, rows = stages.output, stages.allowed.any(-1, keepdim=True)
        tolerance = _tolerance(base, inputs, right)
    change = _told(option, inputs)
    with torch.set_grad_enabled(case.variant("gradients", False)):
        got = base.run(inputs)
    # rows without keys are for the invariants on them
    got = torch.where(rows.to(got.device), got, right.to(got))
    agree_within(got, right, tolerance, f"{change}, output", "textbook attention")
    if case.variant("gradients", False) and has_gradients(subject, case):
        _same_slopes(base, inputs, rows, change)
    if "dropout_p" in subject.accepts and case.variant("dropout", False):
        _drops(base, inputs, change)


def _same_slopes(base: Baseline, inputs: Inputs, rows: Tensor, change: str) -> None:
    weight = torch.randn(rows.shape[:-1], generator=base.generator, dtype=torch.float64)
    weight = weight.unsqueeze(-1) * rows
    given = inputs.map(lambda tensor: tensor.detach().clone().requires_grad_())
    leaves = {name: getattr(given, name) for name in given.floating}
    if given.sinks is not None:
        leaves["sinks"] = given.sinks.detach().clone().requires_grad_()
        given = given.replace(sinks=leaves["sinks"])
    got = base.run(given)
    expected, weight = textbook_output(given).to(got), weight.to(got).expand(got.shape)
    same_gradients(got, expected, leaves, weight, change, "textbook attention", eps=base.eps)


def _drops(base: Baseline, inputs: Inputs, change: str) -> None:
    """In training, each weight is dropped or divided by the share that is kept."""
    width, kv_len = inputs.value.shape[-1], inputs.key.shape[-2]
    eye = torch.eye(kv_len, width, dtype=inputs.value.dtype, device=inputs.value.device)
    inputs = inputs.replace(value=eye.expand(inputs.value.shape))
    with torch.no_grad():
        right = textbook_output(inputs)
        tolerance = _tolerance(base, inputs, right)
        base.module.train()
        got = base.run(inputs.replace(dropout_p=_DROPPED)).cpu().double() * (1 - _DROPPED)
        base.module.eval()
    kept = torch.where((got.abs() <= tolerance) | (right <= tolerance), got, right)
    what = f"{change} and dropout_p={_DROPPED}, a weight that is not lost, times {1 - _DROPPED}"
    agree_within(got, kept, tolerance, what, "textbook attention")


def _applies(option: str, subject: Subject) -> str | None:
    if option not in subject.accepts:
        return f"does not accept {option}"
    if not is_textbook(subject):
        return "it is not scaled dot-product attention, for which alone the option is defined"
    return None


def _cases(option: str, subject: Subject) -> Any:
    variants: dict[str, tuple[str | bool, ...]] = {
        "heads": ("own", "grouped") if "enable_gqa" in subject.accepts else ("own",),
        "kind": _KINDS[option],
        "beside": ("nothing", "others"),
        "gradients": (False, True),
        "dropout": (False, True),
    }
    # what computes in float32 whatever it is given is told by the invariants on numbers
    narrow = tuple(dtype for dtype in subject.dtypes if dtype != "float64")
    windows = (
        Case((1, 2), 4, 6).tried(kind="wide"),
        Case((1, 2), 1, 9).tried(kind="past"),  # a step of decoding, and a causal window
        Case((1, 2), 5, 9, mask="causal").tried(kind="behind"),
        Case((1, 2), 134, 134).tried(kind="both"),  # the last tile begins within its rows' windows
        Case((1, 2), 40, 40).tried(kind="tile"),
        Case((1, 2), 40, 72, mask="causal").tried(kind="tile"),
        # a step that reads the last of several parts, as when nothing is learnt
        Case((1, 2), 1, 70, mask="causal").tried(kind="past", gradients=False),
    )
    step = Case((1, 2), 1, 9).tried(kind=_KINDS[option][0], heads="grouped")
    steps = (step,) if "enable_gqa" in subject.accepts else ()
    return benign(
        subject,
        dtypes=narrow or subject.dtypes,
        leads=(2, 3),  # what goes by head needs heads
        regimes=("normal",),
        max_features=17,
        drawn_len=17,
        variants=variants,
        beyond=(
            Case((1, 2), 3, 150),
            Case((2, 1), 70, 70, mask="causal"),
            Case((1, 2), 2, 140).tried(beside="others"),  # the first tiles lie out of a window
            Case((1, 2), 32, 64, mask="causal").tried(beside="nothing"),  # whole tiles of both
            Case((1, 2), 40, 40).tried(gradients=True, beside="nothing"),  # and gradients of all
            *steps,
            *(windows if option == "window_size" else ()),
        ),
    )


_STATEMENTS: Mapping[str, tuple[str, str, str]] = {
    "window_size": (
        "window_leaves_the_keys_around",
        "window_size=(b, a) leaves query i the keys i + S - L - b to i + S - L + a, of those that "
        "masks leave; -1 is no limit.",
        "an edge is off, counted from the first key, or whole blocks are skipped wrongly",
    ),
    "softcap": (
        "softcap_bounds_scores",
        "softcap=c makes each scaled score s c·tanh(s / c), before masks and softmax.",
        "the cap is left out, applied before scaling or behind the mask, or has no gradient",
    ),
    "sinks": (
        "sinks_take_weight_alone",
        "sinks, one a head, are scores of one more key: they take weight and add no value.",
        "the sink is left out of the sum, adds a value, or goes to another head",
    ),
    "alibi_slopes": (
        "alibi_slopes_lower_scores_by_distance",
        "alibi_slopes m, one a head, take m·|i + S - L - j| from the score of query i and key j.",
        "the distance is counted from the first key or signed, or slopes go to other heads",
    ),
}


@hookimpl
def attnbench_invariants() -> Iterable[Invariant]:
    """An invariant for each option."""
    for option, (name, statement, hint) in _STATEMENTS.items():
        yield Invariant(
            name=name,
            statement=statement,
            hint=hint,
            check=functools.partial(_holds, option),
            cases=functools.partial(_cases, option),
            applies=functools.partial(_applies, option),
        )
