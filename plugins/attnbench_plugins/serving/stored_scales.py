"""The invariant on keys and values that are stored in another dtype, times a scale."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor

from attnbench import Case, Subject
from attnbench.strategies import CaseStrategy
from attnbench.testing import Baseline, benign, grouped, invariant

_NAMES = {"k_scale": "key", "v_scale": "value"}
_STORED = ("own", "int8", "float8_e4m3fn", "zero")
"""Dtypes in which they are stored; with ``zero`` the scale is 0, as of a block of zeros."""

_BESIDE = {"scale": 0.7, "softcap": 2.0}


def _stored(base: Baseline, tensor: Tensor, by: str, kind: str) -> tuple[Tensor, Tensor]:
    """A tensor in the dtype in which it is stored, and a scale that broadcasts to it."""
    shape = {
        "head": (*tensor.shape[-3:-2], 1, 1),
        "item": (*tensor.shape[:-2], 1, 1),  # a number for each of its heads
        "token": (*tensor.shape[:-1], 1),
    }.get(by, ())
    # times a small number these are exact in every dtype, so that nothing is lost in storage
    drawn = 2.0 ** torch.randint(-2, 3, shape, generator=base.generator)
    scale = drawn.to(tensor) * (1.0 if base.case.is_narrow else 1.5)
    if kind == "own":
        return tensor / scale, scale
    if kind == "zero":
        return tensor, torch.zeros_like(scale)
    if kind == "int8":
        return (tensor * 32).round().clamp(-127, 127).to(torch.int8), scale / 32
    return tensor.to(getattr(torch, kind)), scale


def _takes(subject: Subject, **variant: str) -> bool:
    """Whether a call comes through; what raises is refused, but for the plainest."""
    case = subject.legal(Case((2, 2), 3, 4)).tried(**variant)
    try:
        with torch.no_grad():
            scales_restore_keys_and_values.check(subject, case)
    except AssertionError:
        return True
    except Exception:  # whatever it raises
        return variant == {"stored": "own"}
    return True


def _cases(subject: Subject) -> CaseStrategy:
    variants: dict[str, Any] = {
        "heads": ("own", "grouped") if "enable_gqa" in subject.accepts else ("own",),
        "by": ("tensor", "head", "token", *(("item",) if _takes(subject, by="item") else ())),
        "stored": tuple(kind for kind in _STORED if _takes(subject, stored=kind)),
    }
    masks = tuple(
        mask for mask in ("none", "boolean", "bias", "causal") if subject.takes_mask(mask)
    )
    pairs = itertools.product(variants["by"], variants["stored"])
    return benign(
        subject,
        masks=masks,
        leads=(2, 3),
        regimes=("normal",),
        drawn_len=17,
        variants=variants,
        beyond=tuple(Case((2, 2), 3, 6).tried(by=by, stored=stored) for by, stored in pairs),
    )


@invariant(
    hint="a scale is ignored, applied to the wrong tensor or dimension, or after rounding",
    kinds=("mechanism",),
    cases=_cases,
    applies=lambda subject: (
        None if {*_NAMES} & {*subject.accepts} else "does not accept k_scale and v_scale"
    ),
)
def scales_restore_keys_and_values(subject: Subject, case: Case) -> None:
    """Keys and values that are stored in any dtype and multiplied by k_scale and v_scale, by
    tensor, head, item or token, equal their products.
    """
    base = Baseline(subject, case)
    inputs = grouped(base.inputs) if case.variant("heads", "own") == "grouped" else base.inputs
    inputs = inputs.replace(**{k: v for k, v in _BESIDE.items() if k in subject.accepts})
    by, kind = str(case.variant("by", "tensor")), str(case.variant("stored", "own"))
    given, restored = inputs, inputs
    for name, tensor in _NAMES.items():
        if name in subject.accepts:
            stored, scale = _stored(base, getattr(inputs, tensor), by, kind)
            whole = (stored.double() * scale.double()).to(inputs.query.dtype)
            given = given.replace(**{tensor: stored, name: scale})
            restored = restored.replace(**{tensor: whole})
    dtype = case.dtype if kind in ("own", "zero") else kind
    what = "scale of 0" if kind == "zero" else "scale"
    change = f"keys and values stored in {dtype} with a {what} by {by}, output"
    base.on(restored).expect(base.run(given), change, "the call on their products with the scales")
