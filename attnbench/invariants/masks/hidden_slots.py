"""Invariants on values in hidden slots, including NaN and infinity if no query sees the slot."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench.cases.case import Case
from attnbench.invariants.toolkit.applicability import any_of, has_no_gradients
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.comparisons import holds, reject
from attnbench.invariants.toolkit.decorator import invariant
from attnbench.invariants.toolkit.derivations import benign, leaves_of, masks_in_words
from attnbench.invariants.toolkit.slopes import gradients_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_POISONS = ("nan", "inf", "minus_inf")
_MASKS = (
    "boolean",
    "boolean_shared",
    "key_row",
    "key_padding",
    "padding",
    "lengths_2d",
    "causal_padding",
    "window",
)
"""Kinds that hide by a boolean or a length; a floating mask promises nothing about NaN."""

_PLACES = {"both": "key and value", "value": "value", "key": "key"}
_BESIDE = ("nothing", "mask", "row", "lengths")
_VARIANTS = {"poison": _POISONS, "into": tuple(_PLACES), "beside": _BESIDE}


def _poison(case: Case) -> tuple[float, str]:
    """The number that is put into hidden slots, and the tensors it is put into."""
    number = float(case.variant("poison", "nan").replace("minus_", "-"))
    return number, _PLACES[case.variant("into", "both")]


def _poisoned(inputs: Inputs, slots: Tensor, where: str, poison: float) -> Inputs:
    """The inputs with a number in some slots ``(*lead, S, 1)`` of key, value or both."""
    changes = {
        name: getattr(inputs, name).masked_fill(slots, poison)
        for name in ("key", "value")
        if name in where
    }
    return inputs.replace(**changes)


def _padded(subject: Subject, case: Case) -> tuple[Baseline, Tensor]:
    """Inputs, and the slots ``(*lead, S, 1)`` that a boolean mask or a length hides from all.

    They may come together: a mask beside lengths, or beside causality.
    """
    base = Baseline(subject, case)
    beside = case.variant("beside", "nothing")
    if beside in ("mask", "row") and base.inputs.attn_mask is None:
        shape = (case.q_len if beside == "mask" else 1, case.kv_len)
        some = torch.rand(shape, generator=base.generator) < 0.6
        some[..., 0] = True  # a length leaves the first key, and so does causality
        base = base.on(base.inputs.replace(attn_mask=some.to(case.device)))
    elif beside in ("mask", "row") and case.q_len == case.kv_len:
        base = base.on(base.inputs.replace(is_causal=True))
    elif beside == "lengths" and case.lead and base.inputs.attn_mask is not None:
        lens = torch.full(case.lead[:1], case.kv_len, device=case.device)
        lens[0] = max(1, case.kv_len - 1)
        base = base.on(base.inputs.replace(valid_lens=lens))
    slots = ~base.allowed.any(-2).unsqueeze(-1)
    if not bool(slots.any()) or not bool(base.allowed.any(-1).all()):
        reject("no slot is hidden from all queries, or a query has no key")
    return base, slots


def _may_hold_nan(subject: Subject) -> str | None:
    if subject.conventions.hidden_slots == "finite":
        return "hidden slots hold finite numbers only (convention hidden_slots)"
    if subject.kind == "kernel":
        return "attend clears hidden slots before a kernel is called: it never sees what they held"
    return None


@invariant(
    cases=benign, masks=_MASKS, min_kv_len=2, max_len=65, variants=_VARIANTS, applies=_may_hold_nan
)
def hidden_slots_may_hold_nan(subject: Subject, case: Case) -> None:
    """What a mask or a length hides from every query may hold NaN or infinity: the output is the
    same.
    """
    base, slots = _padded(subject, case)
    poison, where = _poison(case)
    change = f"with {poison} as the {where} of the slots that {masks_in_words(base.inputs)} hide"
    got = base.run(_poisoned(base.inputs, slots, where, poison))
    base.expect(got, f"{change} from all queries, output", "the call without")
    if "enable_gqa" in subject.accepts and case.lead and subject.kind != "kernel":
        _grouped(base, where, poison)


def _grouped(base: Baseline, where: str, poison: float) -> None:
    """The same for a single key and value head that all query heads share."""
    given = base.inputs.replace(
        key=base.inputs.key[..., :1, :, :], value=base.inputs.value[..., :1, :, :], enable_gqa=True
    )
    slots = ~base.allowed.any(-2).any(-2, keepdim=True).unsqueeze(-1)
    if not bool(slots.any()):
        return
    base.on(given).expect(
        base.run(_poisoned(given, slots, where, poison)),
        f"with enable_gqa=True and {poison} as the {where} of hidden slots, output",
        "the call without",
    )


@invariant(
    cases=benign,
    masks=_MASKS,
    min_kv_len=2,
    variants=_VARIANTS,
    applies=any_of(_may_hold_nan, has_no_gradients),
)
def hidden_slots_may_hold_nan_in_training(subject: Subject, case: Case) -> None:
    """NaN or infinity in a slot hidden from every query reaches no gradient."""
    base, slots = _padded(subject, case)
    poison, where = _poison(case)
    inputs, named = leaves_of(base.module, _poisoned(base.inputs, slots, where, poison))
    for name, gradient in gradients_of(base.run(inputs).sum(), named).items():
        # a mechanism multiplies the key by a gradient of 0, which is NaN, on its way to the query
        own = name in ("key", "value") or "key" not in where
        if gradient is None or not (own or subject.kind != "mechanism"):
            continue
        holds(
            gradient.isfinite(),
            f"gradient of output.sum() by {name}",
            gradient,
            f"finite: {poison} is the {where} only of slots hidden from all queries",
        )
