from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnbench import MechanismSpec
from tests.invariant_runs import run


class StickBreaking(nn.Module):
    """Right: each key takes a share of what the keys after it leave, so the first gets little."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        wide = torch.promote_types(query.dtype, torch.float32)
        scores = query.to(wide) @ key.to(wide).mT
        keep = nn.functional.logsigmoid(-scores)
        if attn_mask is not None:
            keep = keep.masked_fill(~attn_mask, 0.0)
        left = nn.functional.pad(keep, (0, 1)).flip(-1).cumsum(-1).flip(-1)[..., 1:]
        weights = (nn.functional.logsigmoid(scores) + left).exp()
        if attn_mask is not None:
            weights = weights.masked_fill(~attn_mask, 0.0)
        return (weights @ value.to(wide)).to(query.dtype)


def test_a_key_whose_weight_is_too_small_for_the_dtype_is_no_dropped_key() -> None:
    spec = MechanismSpec(
        name="sticks",
        make=lambda *_: StickBreaking(),
        equal_sizes=True,
        conventions={"masks": ("boolean",)},
    )
    outcome = run(spec, "every_attendable_key_matters")
    assert outcome.status == "passed", outcome.reason
