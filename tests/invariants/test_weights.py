from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from attnbench import Case, MechanismSpec
from attnbench.invariants.weights import every_attendable_key_matters
from attnbench.subject.lookup import resolve


class Normed(nn.Module):
    """Right: what a value changes is normalised, and small beside the rest."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        pooled = (query @ key.mT).softmax(-1) @ value
        return 4 + 0.01 * nn.functional.layer_norm(pooled, value.shape[-1:])


def test_a_change_that_the_dtype_does_not_show_is_no_dropped_key() -> None:
    (subject,) = resolve(MechanismSpec(name="normed", make=lambda *_: Normed()))
    for dtype in ("float32", "bfloat16"):
        every_attendable_key_matters.check(subject, Case((2,), 4, 6, 8, 8, 8, dtype=dtype))
