"""Ring attention: equal to one rank, and its processes end with the one that they work for."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from typing import Any

import psutil
import pytest
import torch
from attnbench_ring.messages import pickled
from attnbench_ring.ranks import ranks

import attnbench
from attnbench import OptionError

pytestmark = pytest.mark.slow

MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "causal": {"is_causal": True},
    "lengths": {"valid_lens": torch.tensor([3, 0])},
    "floating": {"attn_mask": torch.linspace(-2, 2, 70, dtype=torch.float64).reshape(7, 10)},
    "keys": {"attn_mask": torch.arange(20).reshape(2, 1, 10) % 3 > 0},
}
SCRIPT = """
import torch, attnbench
from attnbench_ring.ranks import ranks
x = torch.randn(1, 4, 4)
attnbench.get("ring").make(4, 4, 4)(x, x, x)
print(*(process.pid for process in ranks(2, "cpu").processes), flush=True)
"""


def tensors(q_len: int = 7, kv_len: int = 10) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    sizes = ((q_len, 8), (kv_len, 8), (kv_len, 6))
    return [torch.randn(2, *size, generator=generator, dtype=torch.float64) for size in sizes]


def both(name: str, **options: Any) -> torch.nn.Module:
    torch.manual_seed(0)
    return attnbench.get(name).make(8, 8, 6, **options).double()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("scoring", ["scaled_dot", "additive", "gaussian"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_together_give_the_output_and_gradients_of_one(
    count: int, scoring: str, mask: str
) -> None:
    found = []
    for module in (both("ring", scoring=scoring, ranks=count), both("soft", scoring=scoring)):
        leaves = [tensor.requires_grad_() for tensor in tensors()]
        output = module(*leaves, **MASKS[mask])
        weight = torch.linspace(-1, 1, output.numel(), dtype=output.dtype).view_as(output)
        wanted = [*leaves, *module.parameters()]
        found.append([output, *torch.autograd.grad(output, wanted, weight)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(("q_len", "kv_len"), [(1, 1), (1, 5), (200, 2), (150, 151)])
def test_ranks_may_have_nothing_or_many_rows(q_len: int, kv_len: int) -> None:
    given = tensors(q_len, kv_len)
    torch.testing.assert_close(
        both("ring", ranks=3)(*given), both("soft", scoring="scaled_dot")(*given)
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.bool])
@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.rand(()),
        lambda: torch.rand(2, 0, 3),
        lambda: torch.rand(1, 1).expand(4, 1),
        lambda: torch.rand(1)[None].expand(1, 1).mT,
        lambda: torch.rand(3, 4, requires_grad=True).mT,
        lambda: torch.rand(6)[::2],
        lambda: torch.rand(1).as_strided((1,), (0,)),
    ],
)
def test_a_tensor_arrives_as_it_was_sent(make: Any, dtype: torch.dtype) -> None:
    sent = make().to(dtype)
    name, (got,) = pickle.loads(pickled(("name", [sent])))
    assert (name, got.dtype, got.shape) == ("name", sent.dtype, sent.shape)
    assert torch.equal(got, sent.detach())
    got += True  # it may be written to


def test_weights_of_huge_scores_are_joined_without_rounding() -> None:
    query, key, value = (tensor.float() for tensor in tensors())
    ring, soft = both("ring").float(), both("soft", scoring="scaled_dot").float()
    joined = ring(query * 300, key * 300, value)
    torch.testing.assert_close(joined, soft(query * 300, key * 300, value), rtol=1e-6, atol=1e-6)


def test_a_rank_that_is_lost_is_an_error_and_the_next_call_has_new_ones() -> None:
    module, given = both("ring"), tensors()
    expected = module(*given)
    team = ranks(2, "cpu")
    first, second = team.processes
    first.kill()
    with pytest.raises(RuntimeError, match="a rank has ended"):
        team.run("forward", [({}, {})] * 2)
    assert second.poll() is not None
    torch.testing.assert_close(module(*given), expected)


def test_what_a_rank_raises_is_told() -> None:
    team = ranks(2, "cpu")
    with pytest.raises(RuntimeError, match=r"on a rank: (.|\n)*TypeError"):
        team.run("forward", [({}, {})] * 2)


@pytest.mark.parametrize("whom", ["process", "group"])
def test_no_rank_outlives_the_process_that_it_works_for(whom: str) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert owner.stdout is not None
    pids = [int(word) for word in owner.stdout.readline().split()]
    assert len(pids) == 2
    if whom == "process":
        os.kill(owner.pid, signal.SIGKILL)
    else:
        os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    owner.stdout.close()
    until = time.monotonic() + 30
    while any(psutil.pid_exists(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def test_no_ranks_are_refused() -> None:
    with pytest.raises(OptionError, match="ranks=0, but is at least 1"):
        both("ring", ranks=0)
