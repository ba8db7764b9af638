r"""Ring attention: keys are split over ranks, and their results combined by log-sum-exp.

:math:`o_i = \sum_r e^{\ell_{ir} - \ell_i} o_{ir}, \; \ell_{ir} = \log \sum_{j \in r} e^{a(q_i,
k_j)}, \; \ell_i = \log \sum_r e^{\ell_{ir}}`. Source: Liu, Zaharia and Abbeel 2023,
arXiv:2310.01889. The ranks are processes that the module starts, over ``torch.distributed``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import attnbench
from attnbench import OptionError, Sizes
from attnbench.testing import eager, make_scoring, prepare
from attnbench_ring.ranks import ranks

_SCORING, _RANKS = "scaled_dot", 2


class RingAttention(nn.Module):
    """Softmax over all keys; each rank holds a part of them.

    Args:
        query_size, key_size, value_size: Eq, Ek and Ev.
        scoring: address of a scoring function.
        ranks: number of processes that share the work.
    """

    def __init__(
        self,
        query_size: int,
        key_size: int,
        value_size: int,
        *,
        scoring: str = _SCORING,
        ranks: int = _RANKS,
    ) -> None:
        super().__init__()
        if ranks < 1:
            raise OptionError(f"ring: ranks={ranks}, but is at least 1.")
        self.ranks, self.address, self.sizes = ranks, scoring, (query_size, key_size)
        self.scoring = make_scoring(scoring, query_size, key_size)

    @eager
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        *,
        valid_lens: Tensor | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """The output ``(..., L, Ev)``."""
        call = prepare(self, query, key, value, attn_mask, valid_lens, is_causal)
        bias = allowed = None
        if not call.is_causal:
            bias, allowed = (
                mask if mask is None else mask.expand(*mask.shape[:-1], key.shape[-2])
                for mask in (call.mask.bias, call.mask.allowed)
            )
        output: Tensor = _OnRanks.apply(  # type: ignore[no-untyped-call]  # torch has not typed it
            self, call.is_causal, call.query, call.key, call.value, bias, allowed,
            *self.scoring.parameters(),
        )  # fmt: skip
        return output


def _split(tensor: Tensor, count: int) -> list[Tensor]:
    """Split a tensor into the rows of each rank."""
    return [part.clone() for part in tensor.cpu().tensor_split(count, -2)]


def _split_mask(mask: Tensor | None, count: int) -> Sequence[Tensor | None]:
    """Split a mask into the rows of each rank; a single row for all queries goes to every rank."""
    if mask is None or mask.shape[-2] > 1:
        return [None] * count if mask is None else _split(mask, count)
    return [mask.cpu().contiguous()] * count


class _OnRanks(torch.autograd.Function):
    """The call on the ranks: sends them their rows and collects the results."""

    @staticmethod
    def forward(
        ctx: Any, module: RingAttention, is_causal: bool, *tensors: Tensor | None
    ) -> Tensor:
        ctx.module, ctx.is_causal = module, is_causal
        ctx.state = {k: v.detach().cpu() for k, v in module.scoring.state_dict().items()}
        found = _run(ctx, "forward", tensors)
        query = tensors[0]
        assert query is not None
        output, statistics = (torch.cat(parts, -2).to(query.device) for parts in found)
        ctx.save_for_backward(*tensors[:5], output, statistics)
        return output.to(query.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        *tensors, output, statistics = ctx.saved_tensors
        found = _run(ctx, "backward", tensors, output, statistics, grad.to(output.dtype))
        query, key, value, bias, *shared = found
        joined = [torch.cat(parts, -2) for parts in (query, key, value)]
        given = tensors[3]
        if given is not None:
            joined.append(sum(bias) if given.shape[-2] == 1 else torch.cat(bias, -2))
        slopes = [*joined, *([] if given is not None else [None]), None, *(s[0] for s in shared)]
        wanted = [*tensors, *ctx.module.scoring.parameters()]
        return (
            None,
            None,
            *(
                None if slope is None else slope.to(one.device, one.dtype)
                for slope, one in zip(slopes, wanted, strict=True)
            ),
        )


def _run(ctx: Any, function: str, tensors: Any, *more: Tensor) -> list[list[Any]]:
    """Run a function on the ranks; for each returned tensor, a list over ranks."""
    module, query, key = ctx.module, tensors[0], tensors[1]
    count = module.ranks
    made = {
        "scoring": module.address,
        "sizes": module.sizes,
        "state": ctx.state,
        "training": module.training,
    }
    sizes = {"is_causal": ctx.is_causal, "q_len": query.shape[-2], "kv_len": key.shape[-2]}
    names = ("query", "key", "value", "bias", "allowed")
    parts: list[Sequence[Any]] = [_split(tensor, count) for tensor in tensors[:3]]
    parts += [_split_mask(mask, count) for mask in tensors[3:5]]
    rest = [_split(tensor, count) for tensor in more]
    messages = [
        (made, {**dict(zip(names, shard, strict=True)), **sizes}, *others)
        for shard, others in zip(
            zip(*parts, strict=True), zip(*rest, strict=True) if rest else [()] * count, strict=True
        )
    ]
    answers = ranks(count, query.device.type).run(function, messages)
    return [list(one) for one in zip(*answers, strict=True)]


def _soft() -> Any:
    """The mechanism that gives the same on one rank."""
    return attnbench.get("soft")


def _sizes(sizes: Sizes, scoring: str = _SCORING, ranks: int = _RANKS) -> Sizes:
    legal: Sizes = _soft().sizes(sizes, scoring=scoring)
    return legal


@attnbench.hookimpl
def attnbench_mechanisms() -> Iterable[attnbench.MechanismSpec]:
    """The mechanism ``ring``."""
    yield attnbench.MechanismSpec(
        name="ring",
        make=RingAttention,
        formula="o = Σ_r exp(ℓ_r − ℓ) o_r, ℓ_r = log Σ_{j ∈ r} exp a(q, k_j), ℓ = log Σ_r exp ℓ_r",
        source="Liu et al. 2023, arXiv:2310.01889",
        sizes=_sizes,
        reference=lambda *given: _soft().reference(*given),
        accepts=("is_causal", "valid_lens"),
        laws=("pools_values",),
        exempt={
            "vmap_equals_batch": "it sends the values of tensors to other processes",
        },
        variants=({"ranks": 3}, {"scoring": "additive"}),
    )
