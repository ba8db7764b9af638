"""Invariants on repeated and interleaved calls, and on outputs that are read again later."""

from __future__ import annotations

import time

import torch
from torch import Tensor

from attnbench import Case, Subject
from attnbench.testing import Baseline, agree_within, calls_at, hand_picked, largest, placed_at
from attnbench_plugins.properties import invariant

_CASES = (
    Case((2,), 3, 5, 4, 4, 4),
    Case((2,), 65, 65, 8, 8, 8),
    Case((1,), 130, 258, 16, 16, 16),
)
_LARGE = (
    Case((2,), 256, 256, 64, 64, 64),
    Case((8,), 33, 1025, 16, 16, 16, seed=1),
)

_CALLS, _LEAST = 96, 12
"""Calls at each shape, and the least number for a subject whose calls are slow."""

_FUNCTIONS = 100_000
"""Most functions of Python that the calls at a shape enter, beyond the least number of calls."""

_CONTENTS = 3
_LATER_S = 0.02


@invariant(cases=hand_picked(*_CASES))
def many_calls_agree(subject: Subject, case: Case) -> None:
    """However often calls at one shape come, and in whatever order, with changing contents at the
    same addresses, the output is that of the contents.
    """
    base = Baseline(subject, case)
    contents = [base]
    contents += [base.on(subject.inputs(case.replace(seed=case.seed + n))) for n in (1, 2)]
    for content in contents:
        _ = content.output
    each = max(1.0, calls_at(subject, case))
    count = min(_CALLS, max(_LEAST, int(_FUNCTIONS / each)))
    order = torch.randint(_CONTENTS, (count,), generator=base.generator).tolist()
    places: dict[str, bytearray] = {}
    for number, chosen in enumerate(order):
        inputs = placed_at(places, contents[chosen].inputs)
        with torch.set_grad_enabled(number % 2 == 1):
            got = base.run(inputs)
        contents[chosen].expect(
            got.detach(),
            f"at call {number + 1} of {count} with alternating contents at the same addresses, "
            "output",
            "the first call with these contents",
        )


@invariant(cases=hand_picked(*_LARGE, gradients=(False, True)))
def outputs_are_final(subject: Subject, case: Case) -> None:
    """An output is complete when the call returns, and stays as it is."""
    base = Baseline(subject, case)
    kept: list[tuple[Tensor, Tensor]] = []
    for number in (0, 1, 2, 0):
        inputs = subject.inputs(case.replace(seed=case.seed + number))
        with torch.set_grad_enabled(case.variant("gradients", False)):
            output = base.run(inputs).detach()
        at_once = output.clone()
        if not kept:  # later calls give the others the time to change
            time.sleep(_LATER_S)
        what = f"when read again {1000 * _LATER_S:g} ms after the call returned, output"
        agree_within(output, at_once, 0.0, what, "as soon as it returned")
        kept.append((output, at_once))
    for output, at_once in kept:
        agree_within(output, at_once, 0.0, "when read again after later calls, output", "at first")
    (_, first), (_, again) = kept[0], kept[-1]  # an adapter may have copied an unfinished output
    tolerance = 64 * base.eps * largest(first)
    agree_within(again, first, tolerance, "with the first inputs again, output", "the first time")
