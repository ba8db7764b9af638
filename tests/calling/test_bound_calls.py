"""Calls of what is bound: copies, graphs that a call leaves, and masks that it needs."""

from __future__ import annotations

import torch
from attnbench_plugins.adapters.binding import Binding, Mask
from attnbench_plugins.adapters.calls.attention_call import Attention
from attnbench_plugins.adapters.trials.small_calls import Callee
from torch import Tensor, nn


class WithAGraph(nn.Module):
    """It keeps a tensor with a graph, which torch does not copy."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Parameter(torch.ones(3)) * 2


def test_what_torch_does_not_copy_is_made_anew() -> None:
    callee = Callee(lambda *_: WithAGraph())
    assert callee.at() is not callee.at()


NEEDING = Binding(
    shape="attention",
    layout="BLE",
    memory="BSE",
    roles={"0": "query", "1": "key", "2": "value", "mask": "mask", "lens": "lengths"},
    masks={"mask": Mask("BLS", "shows"), "lens": Mask("B", "lengths")},
    output=(None, "BLE"),
    values={"mask": True, "lens": True},
)


def test_a_mask_that_a_call_needs_is_on_the_device_of_its_query() -> None:
    devices = []

    def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, lens: Tensor) -> Tensor:
        devices.extend([mask.device.type, lens.device.type])
        return query

    Attention(attend, NEEDING)(*(torch.ones(2, 3, 4, device="meta") for _ in range(3)))
    assert devices == ["meta", "meta"]


def test_graphs_that_a_call_leaves_are_kept_where_they_are_asked_for() -> None:
    class Keeping(nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            self.kept = query * 2
            return query

    bare = NEEDING.replace(roles={"0": "query", "1": "key", "2": "value"}, masks={}, values={})
    for keeps in (False, True):
        module = Attention(Keeping(), bare)
        module.keeps_graphs = keeps
        module(*(torch.ones(2, 3, 4, requires_grad=True) for _ in range(3)))
        assert (module.callee.kept.grad_fn is not None) == keeps
