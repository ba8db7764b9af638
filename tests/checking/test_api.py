"""What a check leaves behind in the process that it runs in."""

from __future__ import annotations

import torch

from attnbench.checking.api import outcomes_of, select_invariants
from attnbench.subject.lookup import resolve


def test_whoever_takes_outcomes_one_by_one_has_threads_and_generator_of_his_own_between() -> None:
    (subject,) = resolve("dot")
    invariants = select_invariants(["output_has_shape_and_dtype", "weights_sum_to_one"])
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    torch.manual_seed(7)
    expected = torch.get_rng_state()
    try:
        for outcome in outcomes_of(subject, invariants, profile="quick"):
            assert outcome.status == "passed"
            assert torch.get_num_threads() == 2
            assert torch.equal(torch.get_rng_state(), expected)
    finally:
        torch.set_num_threads(threads)
