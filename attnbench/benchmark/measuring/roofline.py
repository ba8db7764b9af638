"""The roofline: the least time of a call on a machine, and a bound that none can undercut."""

from __future__ import annotations

import math

from attnbench.benchmark.agreement.attention_agreement import is_scaled_dot
from attnbench.benchmark.machine.sentinel import Ceilings
from attnbench.benchmark.measuring.counts import Counts
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs

_SAFETY = 2.0
"""How many times faster than the measured ceilings a call must be to be impossible: the sentinels
may have been disturbed, and reading alone is faster than copying."""


def roofline_s(counts: Counts, compulsory_bytes: int, limits: Ceilings) -> float | None:
    """The least seconds that a call can take on a machine; ``None`` if operations are unknown."""
    if counts.opaque:
        return None
    moving_s = compulsory_bytes / limits.bytes_per_s
    return max(moving_s, counts.matmul_operations / limits.operations_per_s)


def impossible_s(
    subject: Subject, inputs: Inputs, compulsory_bytes: int, limits: Ceilings
) -> float:
    """Seconds that no call of a subject can undercut, whatever it counts as its operations.

    Every call reads its inputs and writes its output. A softmax over all keys has no shortcut:
    each weight that a mask allows multiplies a value, and in scaled dot-product attention, each
    score is a product of a query and a key. Where the query does not count, rows are pooled once.
    """
    products = 0
    has_softmax = subject.scoring is not None or is_scaled_dot(subject)
    if has_softmax and "query_independent" not in subject.laws:
        allowed = inputs.mask.allowed
        pairs = math.prod(inputs.query.shape[:-1]) * inputs.key.shape[-2]
        if allowed is not None:
            pairs = round(pairs * float(allowed.double().mean()))
        sizes = inputs.value.shape[-1] + is_scaled_dot(subject) * inputs.query.shape[-1]
        products = 2 * pairs * sizes
    moving_s = compulsory_bytes / limits.cached_bytes_per_s
    return max(moving_s, products / limits.most_operations_per_s) / _SAFETY
