"""Laws on positions: slots before or after all visible ones are inert, and rows are as columns."""

from __future__ import annotations

import functools

import torch

from attnbench import Case, InvariantViolation, Subject
from attnbench.testing import (
    Baseline,
    LayerCase,
    agree,
    benign,
    invariant,
    layer_invariant,
    reject,
    resizes,
    select_keys,
)

_ANGLES = 2.0**-14
"""What angles of up to 129 positions lose in float32, in which most code computes them: 2⁻¹⁷ each,
with room for several features.
"""


@invariant(
    hint="slots behind the last one that is seen are counted in a size, a mean or a position",
    masks=("key_row", "key_padding", "padding", "causal_padding"),
    min_kv_len=2,
    leads=(1,),
    regimes=("normal",),
    law=True,
)
def trailing_padding_equals_deleting(subject: Subject, case: Case) -> None:
    """Leaving out the slots behind the last that any query sees changes nothing."""
    module, inputs = subject.build(case)
    seen = inputs.allowed.flatten(0, -2).any(0).nonzero()
    last = int(seen[-1]) + 1
    if last == case.kv_len:
        reject("some query sees the last slot")
    with torch.no_grad():
        whole = subject.output(module, inputs)
        less = subject.output(module, select_keys(inputs, torch.arange(last)))
    what = f"with the last {case.kv_len - last} slots, which no query sees, left out, output"
    agree(less, whole, what, "the same call with them", units=64)


@invariant(
    hint="positions are counted from the first slot rather than as distances",
    cases=benign,
    masks=("none", "causal"),
    min_kv_len=2,
    max_len=129,
    applies=lambda subject: resizes(subject, "kv_len"),
    law=True,
)
def leading_padding_equals_deleting(subject: Subject, case: Case) -> None:
    """Slots before the first that any query sees might as well not be there: only distances
    count.
    """
    base = Baseline(subject, case)
    inputs, first = base.inputs, 1 + base.choose(case.kv_len - 1)
    seen = torch.arange(case.kv_len, device=inputs.query.device) >= first
    base = base.on(inputs.replace(attn_mask=seen.unsqueeze(0)))
    if subject.conventions.empty_rows == "nan" and not bool(base.allowed.any(-1).all()):
        reject("a query is left no key, and is NaN with the slots and without them")
    less = inputs.replace(key=inputs.key[..., first:, :], value=inputs.value[..., first:, :])
    got, other = base.run(less), "the same call with them"
    what = f"with the first {first} of {case.kv_len} slots, which no query sees, left out, output"
    eps = torch.finfo(got.dtype).eps
    try:
        base.expect(got, what, other)
    except InvariantViolation:
        if eps > _ANGLES:
            raise
        agree(got, base.output, what, other, units=_ANGLES / eps)


@layer_invariant(
    hint="rows and columns of the grid are exchanged, or treated unlike, somewhere",
    regimes=("normal",),
    dtypes=("float64", "float32"),
    applies=lambda subject: (
        None if subject.spec.grid else "its tokens are no grid: declare grid=True"
    ),
    law=True,
)
def transposes_with_the_grid(layer: LayerCase) -> None:
    """Transposing a grid of tokens transposes the output."""
    rows, columns = 1 + layer.choose(5), 1 + layer.choose(5)
    shape = (layer.case.lead[0], rows, columns, layer.case.query_size)
    grid = layer.other(layer.hidden.new_zeros(shape))
    expected = layer.run(grid)
    got = layer.run(grid.transpose(1, 2).contiguous()).transpose(1, 2)
    what = f"of the transposed grid of {rows} x {columns}, transposed back, output"
    limits = functools.partial(layer.limits, grid)
    layer.expect(got, expected, layer.real(grid), what, "that of the grid", allowed=limits)
