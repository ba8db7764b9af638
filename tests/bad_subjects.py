"""Scoring functions that misbehave, each in one way; what they compute is a scaled dot product."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnbench.specs import MechanismSpec, ScoringSpec


class Right(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores: Tensor = (query / query.shape[-1] ** 0.5) @ key.mT
        return scores


class WrongType(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return [super().forward(query, key)]  # type: ignore[return-value]


class WrongShape(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).sum(-1)


class WrongDtype(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).int()


class WrongDevice(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).to("meta")


class GivesNan(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key) * float("nan")


class ChangesInput(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query *= query.shape[-1] ** -0.5
        return query @ key.mT


class NeedsEqualSizes(Right):
    """Does not say so in its spec."""


class RaisesForOneQuery(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if query.shape[-2] == 1:
            raise IndexError("too few queries for my taste")
        return super().forward(query, key)


class Nondeterministic(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().forward(query, key)
        return scores + torch.rand_like(scores)


class Hangs(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if mark := os.environ.get("ATTNBENCH_TESTS_HANGS"):
            Path(mark).touch()
        time.sleep(600)
        return super().forward(query, key)


class HangsInTraining(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if self.training:
            time.sleep(600)
        return super().forward(query, key)


class NanInFloat16(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().forward(query, key)
        return scores * float("nan") if query.dtype == torch.float16 else scores


class Hoards(Right):
    kept: ClassVar[list[Tensor]] = []

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        while True:
            self.kept.append(torch.ones(2**22))


class KillsItsProcess(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(query, key)


class Leaves(Right):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        raise SystemExit(3)


def _spec(cls: type[nn.Module], *, equal_sizes: bool = True) -> ScoringSpec:
    return ScoringSpec(
        name=cls.__name__, make=lambda query_size, key_size: cls(), equal_sizes=equal_sizes
    )


class NoTensor(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return None  # type: ignore[return-value]


class DropsLead(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        output = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)
        return output.flatten(0, -2)


class WidensOutput(nn.Module):
    def forward(self, query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None) -> Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, attn_mask).double()


def _mechanism(cls: type[nn.Module]) -> MechanismSpec:
    return MechanismSpec(
        name=cls.__name__,
        make=lambda query_size, key_size, value_size: cls(),
        equal_sizes=True,
        laws=("pools_values",),
    )


RIGHT = _spec(Right)
TYPE = _spec(WrongType)
SHAPE = _spec(WrongShape)
DTYPE = _spec(WrongDtype)
DEVICE = _spec(WrongDevice)
NAN = _spec(GivesNan)
CHANGES = _spec(ChangesInput)
SIZES = _spec(NeedsEqualSizes, equal_sizes=False)
RAISES = _spec(RaisesForOneQuery)
RANDOM = _spec(Nondeterministic)
HANGS = _spec(Hangs)
HANGS_TRAINING = _spec(HangsInTraining)
HALF_NAN = _spec(NanInFloat16)
HOARDS = _spec(Hoards)
KILLS = _spec(KillsItsProcess)
LEAVES = _spec(Leaves)
NO_TENSOR = _mechanism(NoTensor)
DROPS_LEAD = _mechanism(DropsLead)
WIDENS = _mechanism(WidensOutput)
