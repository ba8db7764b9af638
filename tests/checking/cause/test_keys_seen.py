"""The keys that a query sees in a wrong call, and should see, are told."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnbench import ScoringSpec
from attnbench.adapters import sdpa
from attnbench.cases.case import Case
from attnbench.checking.cause.keys_seen import keys_seen, place_of
from attnbench.checking.cause.replays import made_at
from attnbench.checking.known_causes import mistake_of
from attnbench.checking.outcomes import Failure
from attnbench.checking.plan import select_invariants
from attnbench.subject.lookup import resolve


def halves(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """The keys are halved, and the one that is left over is lost."""
    end = max(1, key.shape[-2] // 2 * 2)
    return scaled_dot_product_attention(query, key[..., :end, :], value[..., :end, :])


def causal(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, is_causal=query.shape[-2] == 3)


def doubled(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    return scaled_dot_product_attention(query, key, value, scale=1.0)


@pytest.mark.parametrize(
    ("function", "q_len", "told"),
    [
        (halves, 1, "query 0 sees keys 0 to 1, and should see keys 0 to 2"),
        (halves, 2, "query 0 sees keys 0 to 1, and should see keys 0 to 2: so 2 of 2 rows are"),
        (causal, 3, "query 0 sees key 0, as with causality, and should see keys 0 to 2: so 2 of 3"),
        (doubled, 2, ""),
    ],
)
def test_the_keys_that_a_query_sees_are_told(
    function: Callable[..., Tensor], q_len: int, told: str
) -> None:
    (subject,) = resolve(sdpa(function, name="mine"))
    (invariant,) = select_invariants(["agrees_with_scalar_reference"])
    case = Case((), q_len, 3, 4, 4, 4)
    assert keys_seen(subject, invariant, Failure(case=case.id)).startswith(told)
    assert bool(keys_seen(subject, invariant, Failure(case=case.id))) == bool(told)
    even = case.replace(q_len=2, kv_len=4)
    assert keys_seen(subject, invariant, Failure(case=even.id)) == ""


def windowed(
    query: Tensor, key: Tensor, value: Tensor, window_size: tuple[int, int] = (-1, -1)
) -> Tensor:
    """Blocks of 16 keys are left out that the window of the last query of all hides."""
    q_len, kv_len = query.shape[-2], key.shape[-2]
    before, after = window_size
    ahead = torch.arange(kv_len) - torch.arange(q_len)[:, None] - (kv_len - q_len)
    seen = (ahead >= -before) if before >= 0 else torch.ones_like(ahead, dtype=torch.bool)
    seen = seen & (ahead <= after) if after >= 0 else seen
    low = max(0, kv_len - 1 - before) // 16 * 16 if before >= 0 else 0
    scores = (query @ key.mT / math.sqrt(query.shape[-1])).masked_fill(~seen, -math.inf)
    return scores[..., low:].softmax(-1).nan_to_num(0.0) @ value[..., low:, :]


def test_a_window_of_one_query_that_decides_for_a_block_is_named() -> None:
    (subject,) = resolve(sdpa(windowed, name="mine"))
    (invariant,) = select_invariants(["window_leaves_the_keys_around"])
    case = Case((1, 1), 2, 53, 8, 8, 8).tried(kind="tile", beside="nothing")
    found = made_at(subject, invariant, Failure(case=case.id))
    assert {mistake_of(name) for name in found} == {"window_size_read_by_block"}
    told = keys_seen(subject, invariant, Failure(case=case.id))
    assert told.startswith("query 0 sees keys 32 to 52, and should see keys 31 to 52: so 1")


class AtMostSome(torch.nn.Module):
    """Scores of minus infinity, which are given for some calls alone."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("not again")
        return (query @ key.mT - math.inf).clone()


@pytest.mark.parametrize("calls", [1, 2, 3])
def test_a_call_that_raises_while_the_line_is_looked_for_leaves_the_failure_as_it_is(
    calls: int,
) -> None:
    spec = ScoringSpec(name="mine", make=lambda q, k: AtMostSome(calls), equal_sizes=True)
    (subject,) = resolve(spec)
    (invariant,) = select_invariants(["weights_sum_to_one"])
    case = Case((), 2, 3, 4, 4, 4)
    assert place_of(subject, invariant, Failure(case=case.id, got=0.0)) == ""
