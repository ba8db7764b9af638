"""Mistakes in scoring functions: dot product, bilinear, Gaussian."""

from __future__ import annotations

import math
from typing import Any

import torch
from attnbench_plugins.scorings.bilinear import BilinearScoring
from attnbench_plugins.scorings.gaussian import GaussianScoring
from attnbench_plugins.scorings.scaled_dot import ScaledDotScoring
from attnbench_plugins.scorings.vector_sum import VectorSumScoring
from torch import Tensor, nn

import attnbench
from attnbench_zoo.base import Group, Mutant, Twin, widen

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []


def _twin(name: str) -> Twin:
    return Twin(name, attnbench.get(name))


_scaled_dot = Group(_twin("scaled_dot"), MUTANTS)
_bilinear = Group(_twin("bilinear"), MUTANTS)
_gaussian = Group(_twin("gaussian"), MUTANTS)
_vector_sum = Group(_twin("vector_sum"), MUTANTS)


class _Dot(ScaledDotScoring):
    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__()


@_scaled_dot("mlc-llm#3426", "cntkx#10", killers=("unit_variance",))
class DotWithoutScale(_Dot):
    """The product is not divided by the root of E."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query * math.sqrt(query.shape[-1]), key)


@_scaled_dot("own", killers=("unit_variance",))
class DotOverSize(_Dot):
    """The product is divided by E."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key) / math.sqrt(query.shape[-1])


@_scaled_dot("pytorch/xla#2369", killers=("inputs_are_unchanged",))
class DotScalesQueryInPlace(_Dot):
    """``query *= scale`` changes what the caller holds."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        with torch.no_grad():
            query *= query.shape[-1] ** -0.5
        return query.float().to(query.dtype) @ key.mT


@_scaled_dot("mlc-llm#1638", killers=("agrees_with_float64",))
class DotOverflowsInHalf(_Dot):
    """The product of half types is made in them, and scaled behind."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return (query @ key.mT) / math.sqrt(query.shape[-1])


@_scaled_dot("own", killers=("query_alone_equals_query_among_others",))
class DotTransposedWhereSquare(_Dot):
    """Where L equals S, the scores come transposed."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().forward(query, key)
        return scores.mT if scores.shape[-1] == scores.shape[-2] else scores


@_scaled_dot("own", killers=("bilinear",))
class DotOfCosines(_Dot):
    """The keys are normalised."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, nn.functional.normalize(key, dim=-1))


@_scaled_dot("pytorch#112577", "pytorch#181133", killers=("layouts_agree",))
class DotReadsStorage(_Dot):
    """The key's memory is read as if it were contiguous."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        flat = torch.as_strided(key, (key.numel(),), (1,)) if _dense(key) else key.flatten()
        return super().forward(query, flat.reshape(key.shape))


def _dense(tensor: Tensor) -> bool:
    last = tensor.storage_offset() + tensor.numel()
    return last <= tensor.untyped_storage().nbytes() // tensor.element_size()


@_scaled_dot("seen in review", killers=("gradients_are_right",))
class DotKeyDetached(_Dot):
    """The key is detached from the graph."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key.detach())


@_scaled_dot("own", killers=("keeps_the_contract",))
class ScoresWithNoise(_Dot):
    """A little noise is added, as for exploration, in evaluation too."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        scores = super().forward(query, key)
        return scores + 1e-2 * torch.randn_like(scores)


@_scaled_dot("own", killers=("bilinear",))
class ScoresAbsolute(_Dot):
    """Scores are taken without their sign."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).abs()


@_scaled_dot("own", killers=("keeps_the_contract",))
class SqueezedScores(_Dot):
    """``squeeze()`` on scores drops sizes of 1."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).squeeze()


@_bilinear("own", killers=("unit_variance",))
class BilinearInitialisedWithOne(BilinearScoring):
    """W is drawn with variance 1, so that scores grow with the sizes."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight)


@_bilinear("own", killers=("unit_variance",))
class BilinearScaledByQuerySize(BilinearScoring):
    """W is drawn by the query's size alone, right where both sizes agree."""

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[0] ** -0.5)


@_bilinear("own", killers=("agrees_with_scalar_reference",))
class BilinearTransposedWhereSquare(BilinearScoring):
    """W is transposed, which shows where both sizes agree only in the scores."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        if self.weight.shape[0] != self.weight.shape[1]:
            return super().forward(query, key)
        return super().forward(key, query).mT


@_bilinear("own", killers=("bilinear",))
class BilinearWithTanh(BilinearScoring):
    """The score is squashed, so that it is bilinear no more."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key).tanh()


@_bilinear("own", killers=("bilinear",))
class BilinearWithABias(BilinearScoring):
    """The query has a bias, so that the score is not linear in the key's factor."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query + 0.1, key)


@_bilinear("own", killers=("gradients_reach_every_parameter",))
class BilinearWeightDetached(BilinearScoring):
    """The matrix is read through ``.data``, so that nothing trains it."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, weight = widen(query, key, self.weight.detach())
        return (query @ (weight * self.scale)) @ key.mT


@_gaussian("own", killers=("monotone_in_distance",))
class GaussianSignFlipped(GaussianScoring):
    """The further away a key, the larger its score."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().forward(query, key)


@_gaussian("own", killers=("translation_invariant",))
class GaussianExpanded(GaussianScoring):
    """‖q‖² + ‖k‖² − 2 q·k without centring: nothing is left of it far from the origin."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key, bandwidth = widen(query, key, self.bandwidth)
        query, key = query * bandwidth, key * bandwidth
        squares = query.square().sum(-1, keepdim=True) + key.square().sum(-1).unsqueeze(-2)
        return -0.5 * (squares - 2 * query @ key.mT)


@_gaussian("own", killers=("unit_variance",))
class GaussianNotSquared(GaussianScoring):
    """The distance for its square."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return -super().forward(query, key).abs().clamp_min(1e-12).sqrt()


@_gaussian("own", killers=("translation_invariant",))
class GaussianOfTheKeysOrigin(GaussianScoring):
    """The key is shrunk towards the origin before the distance is taken."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, 0.9 * key)


@_vector_sum("own", killers=("query_independent",))
class VectorSumMultiplied(VectorSumScoring):
    """The query's and the key's term are multiplied, so that the query matters."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        zero_query, zero_key = (
            torch.zeros_like(query[..., :1, :]),
            torch.zeros_like(key[..., :1, :]),
        )
        of_query = super().forward(query, zero_key)
        return of_query * super().forward(zero_query, key)


class _Products(torch.autograd.Function):
    """Products; each subclass has a backward pass of its own."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor) -> Tensor:
        ctx.save_for_backward(query, key)
        return query @ key.mT


class _Overwrites(_Products):
    """Products whose backward pass works in the gradient that it is handed."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        grad.neg_()
        return -grad @ key, -grad.mT @ query


@_scaled_dot("own", killers=("gradient_layouts_agree",))
class IncomingGradientOverwritten(_Dot):
    """The backward pass overwrites the gradient that it is handed."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = widen(query, key)
        scores: Tensor = _Overwrites.apply(query * query.shape[-1] ** -0.5, key)
        return scores


class _ReadsOn(_Products):
    """Products whose backward pass reads the gradient's memory on and on."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        if grad.stride(-1) == 1:
            rows = torch.empty(grad.shape, device="meta").stride()
            grad = torch.as_strided(grad, grad.shape, rows)
        return grad @ key, grad.mT @ query


@_scaled_dot("own", killers=("gradient_layouts_agree",))
class GradientReadAsContiguous(_Dot):
    """The backward pass takes a gradient whose last stride is 1 for a contiguous one."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = widen(query, key)
        scores: Tensor = _ReadsOn.apply(query * query.shape[-1] ** -0.5, key)
        return scores


class _NarrowSum(_Products):
    """Products whose gradients are added up in float32."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        query, key = ctx.saved_tensors
        narrow = grad.float()
        return (narrow @ key.float()).to(query.dtype), (narrow.mT @ query.float()).to(key.dtype)


@_scaled_dot("own", killers=("gradients_are_right",))
class GradientAddedUpInFloat32(_Dot):
    """The backward pass adds up in float32, in float64 too."""

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = widen(query, key)
        scores: Tensor = _NarrowSum.apply(query * query.shape[-1] ** -0.5, key)
        return scores


@_bilinear("own", killers=("gradients_reach_every_parameter",))
class ParameterNotRegistered(BilinearScoring):
    """A temperature to be trained is a plain tensor of the module."""

    def __init__(self, query_size: int, key_size: int) -> None:
        super().__init__(query_size, key_size)
        self.temperature = torch.ones((), requires_grad=True)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return super().forward(query, key) * self.temperature.to(query.dtype)
