"""The output at a case that other computations are compared with."""

from __future__ import annotations

from attnbench import Case
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.subject.lookup import resolve


def test_what_rounding_moves_is_measured_anew_on_other_inputs() -> None:
    (subject,) = resolve("scaled_dot")
    base = Baseline(subject, Case(lead=(), q_len=5, kv_len=4, seed=2))
    near = 18 * base.eps * float(base.inputs.value.abs().max())  # 16 pass without an estimate
    base.expect(base.output + near, "output", "the same call")
    one = base.on(base.inputs.replace(query=base.inputs.query[:1]))
    one.expect(one.output + near, "output of one query", "the same call")
