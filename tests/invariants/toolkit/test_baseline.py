"""The output at a case that other computations are compared with."""

from __future__ import annotations

import torch
from torch import Tensor

from attnbench import Case, adapters
from attnbench.invariants.toolkit.baseline import Baseline
from attnbench.invariants.toolkit.derivations import select_keys
from attnbench.subject.lookup import resolve


def test_what_rounding_moves_is_measured_anew_on_other_inputs() -> None:
    (subject,) = resolve("scaled_dot")
    base = Baseline(subject, Case(lead=(), q_len=5, kv_len=4, seed=2))
    near = 18 * base.eps * float(base.inputs.value.abs().max())  # 16 pass without an estimate
    base.expect(base.output + near, "output", "the same call")
    one = base.on(base.inputs.replace(query=base.inputs.query[:1]))
    one.expect(one.output + near, "output of one query", "the same call")


def merged(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attention over two parts of the keys, merged by their log-sums."""
    cut = key.shape[-2] // 2
    parts = zip(key.tensor_split([cut], -2), value.tensor_split([cut], -2), strict=True)
    scores = [(query * query.shape[-1] ** -0.5 @ k.mT, v) for k, v in parts]
    sums = torch.cat([s.logsumexp(-1, keepdim=True) for s, _ in scores], -1)
    outputs = [(s - s.logsumexp(-1, keepdim=True)).exp() @ v for s, v in scores]
    return (sums.softmax(-1).unsqueeze(-2) @ torch.stack(outputs, -2)).squeeze(-2)


def test_what_only_the_derived_call_rounds_is_allowed() -> None:
    (subject,) = resolve(adapters.sdpa(merged, name="merged"))
    case = Case.from_id("b3-L3-S3-Eq5-Ek5-Ev5-float32-cpu-none-contiguous-huge-s1")
    base = Baseline(subject, case)  # in its order, each log-sum is one of the scores
    turned = base.run(select_keys(base.inputs, torch.tensor([2, 1, 0])))
    base.expect(turned, "in another order, output", "the order as it was")
