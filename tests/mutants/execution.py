"""Mistakes of state, mode and memory."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.mutants.base import Group, Mutant
from tests.mutants.twins.attention import ATTENTION, Attention, wide
from tests.mutants.twins.heads import HEADS, Heads

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


@_attention("OpenNMT-py#867", killers=("inputs_are_unchanged",))
class MaskInvertedInPlace(Attention):
    """``mask.logical_not_()`` changes the caller's mask, right once and wrong the next time."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        if attn_mask is not None and attn_mask.dtype == torch.bool and not attn_mask.all():
            attn_mask.logical_not_()
        return allowed, bias


@_attention("OpenNMT-py#867", killers=("inputs_are_unchanged",))
class PaddingZeroedInPlace(Attention):
    """Hidden slots of the caller's value are zeroed."""

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        with torch.no_grad():
            silent = super().silence(value, allowed)
            value.copy_(silent) if value.is_contiguous() else None
        return super().silence_value(value, allowed)


@_attention("pytorch/xla#2369", killers=("inputs_are_unchanged",))
class QueryScaledInPlace(Attention):
    """``q *= scale`` changes the caller's query."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if query.requires_grad or query.dtype in (torch.float16, torch.bfloat16):
            return super().scores(query, key, scale)
        scores = super().scores(query, key, scale)
        query.mul_(scale) if 0 not in query.stride() else None
        return scores


@_attention("own", killers=("inputs_are_unchanged",))
class LengthsShiftedInPlace(Attention):
    """Lengths are made positions with ``-= 1``, in the caller's memory."""

    def lengths(self, valid_lens: Tensor, query: Tensor, kv_len: int) -> Tensor:
        inside = super().lengths(valid_lens, query, kv_len)
        valid_lens -= 1
        return inside


@_attention("pytorch#112577", "pytorch#181133", killers=("layouts_agree",))
class ReadsMemoryInOrder(Attention):
    """A transposed value is read as if it were contiguous."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        if not value.is_contiguous() and value.mT.is_contiguous():
            value = value.mT.reshape(value.shape)
        return super().silence_value(value, allowed)


@_attention("own", killers=("layouts_agree",))
class OffsetIgnored(Attention):
    """A view is read from the beginning of its memory."""

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        start = torch.as_strided(key, key.shape, key.stride(), 0)
        return super().silence_key(start, allowed)


@_attention("own", killers=("layouts_agree",))
class ExpandedBatchReadOnce(Attention):
    """A batch with stride 0 is pooled for its first item only, the others get zeros."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        if self.expanded and output.dim() > 2:
            output = torch.cat([output[:1], torch.zeros_like(output[1:])])
        return output

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        self.expanded = value.dim() > 2 and value.stride(0) == 0
        return super().silence_value(value, allowed)


@_attention("pytorch#86120", "pytorch#97111", killers=("gradient_modes_agree",))
class FastPathWithoutMask(Attention):
    """Without gradients a fast path is taken, which ignores floating masks' finite values."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        allowed, bias = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return allowed, bias if torch.is_grad_enabled() else torch.zeros_like(bias)


@_attention("pytorch#86120", "pytorch#97111", killers=("gradient_modes_agree",))
class FastPathWithoutScale(Attention):
    """In evaluation and without gradients the scores are not scaled."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        fast = not torch.is_grad_enabled() and not self.training
        return 1.0 if fast and given is None else super().scale(query, key, given)


@_attention("own", killers=("training_equals_evaluation",))
class TrainingPathWithoutScale(Attention):
    """In training the scores are not scaled."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0 if self.training and given is None else super().scale(query, key, given)


@_attention("own", killers=("calls_leave_no_trace",))
class MaskCachedByShape(Attention):
    """A mask is kept, and used again for the next call of the same shape."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        cache = self.__dict__.setdefault("cache", {})
        shape = (query.shape, key.shape, attn_mask is None, query.dtype, is_causal)
        if shape not in cache:
            cache[shape] = super().mask(query, key, attn_mask, valid_lens, is_causal)
        return cache[shape]


@_attention("own", killers=("decode_equals_prefill",))
class CausalMaskCachedTooShort(Attention):
    """The causal mask of the first call is cut for shorter ones, at the wrong corner."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        cache = self.__dict__.setdefault("cache", [])
        if not cache or cache[0].shape[0] < q_len or cache[0].shape[1] < kv_len:
            cache[:] = [super().causal(q_len, kv_len, device)]
        cached: Tensor = cache[0]
        return cached[:q_len, :kv_len]


@_attention("own", killers=("calls_leave_no_trace",))
class ValuesRunOn(Attention):
    """A running mean of the outputs is kept between calls, and a hundredth of it added."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output = super().pool(weights, value)
        mean: float = self.__dict__.get("mean", 0.0)
        self.mean = 0.9 * mean + 0.1 * float(output.detach().double().mean().nan_to_num())
        return output + 0.01 * mean


@_attention("own", killers=("calls_leave_no_trace",))
class FirstCallInitialises(Attention):
    """The first call sets a temperature from its data, and state_dict does not hold it."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        spread = self.__dict__.setdefault("spread", 1 + 0.1 * query.detach().float().std().item())
        return scores / spread if query.numel() > 1 else scores


@_attention("own", killers=("asking_for_weights_changes_nothing",))
class CausalDroppedBesideWeights(Attention):
    """Where weights are asked for, the output is one without causality."""

    def forward(self, *args: Any, return_weights: bool = False, **kwargs: Any) -> Any:
        found = super().forward(*args, return_weights=return_weights, **kwargs)
        if not return_weights:
            return found
        return super().forward(*args, **{**kwargs, "is_causal": False}), found[1]


@_heads("own", killers=("copies_agree",))
class BufferNotInStateDict(Heads):
    """A random temperature is a plain attribute, so that ``state_dict`` does not hold it."""

    def __init__(self, query_size: int, key_size: int, value_size: int, *, heads: int = 2) -> None:
        super().__init__(query_size, key_size, value_size, heads=heads)
        self.temperature = 0.5 + float(torch.rand(()))

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        return super().attend(query * self.temperature, key, value, mask)


@_heads("own", killers=("copies_agree",))
class CopySharesParameters(Heads):
    """A deepcopy of its own shares the parameters with the module."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Heads:
        copied = self.__class__.__new__(self.__class__)
        copied.__dict__ = dict(self.__dict__)
        return copied


@_heads("own", killers=("copies_agree",))
class ProjectionKeptWithoutGradients(Heads):
    """Without gradients a projection is computed from weights kept of the first such call."""

    def project(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        if torch.is_grad_enabled() or linear is not self.query_proj:
            return super().project(linear, tensor)
        if "kept" not in self.__dict__ or self.kept.dtype != wide(linear.weight).dtype:
            self.kept = wide(linear.weight.detach()).clone()
        return nn.functional.linear(wide(tensor), self.kept, wide(linear.bias))


@_attention("own", killers=("vmap_equals_batch",))
class AnswerDependsOnPythonBranch(Attention):
    """A branch on values, which no compiler or ``vmap`` can follow."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if float(query.detach().double().abs().amax()) > 1e30:
            return torch.zeros_like(super().scores(query, key, scale))
        return super().scores(query, key, scale)


@_attention("own", killers=("masking_equals_deleting",))
class ScaleOfTheFirstLength(Attention):
    """A temperature is kept from the first call's length, as a constant in a trace would be."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        length = self.__dict__.setdefault("length", key.shape[-2])
        usual = super().scale(query, key, given)
        return usual if key.shape[-2] == length else 0.9 * usual


@_attention("own", killers=("inputs_are_unchanged",))
class OnlyKeyGivesItsValue(Attention):
    """Where there is one query and one key, the value itself is handed back."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return value if weights.shape[-2:] == (1, 1) else super().pool(weights, value)

    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        whole = allowed.shape[-2:] == (1, 1) and bool(allowed.all())
        return value if whole else super().silence_value(value, allowed)


@_attention("own", killers=("training_equals_evaluation",))
class MeanOfTrainingTakenOff(Attention):
    """Calls in training gather a mean, which calls in evaluation take off the scores of some."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        if self.training:
            self.mean = float(scores.detach().mean())
            return scores
        return torch.cat([scores[..., :1] - getattr(self, "mean", 0.0), scores[..., 1:]], -1)


@_attention("own", killers=("calls_leave_no_trace",))
class DistancesCachedByCount(Attention):
    """What is kept for a number of pairs is used for all shapes with so many."""

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        return super().causal(q_len, kv_len, device)

    def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
        cache = self.__dict__.setdefault("cache", {})
        q_len, kv_len = scores.shape[-2:]
        if q_len * kv_len not in cache:
            cache[q_len * kv_len] = kv_len
        return super().hide(scores * (cache[q_len * kv_len] / kv_len), allowed)


@_attention("own", killers=("calls_leave_no_trace",))
class TableNeverGrows(Attention):
    """A table of positions, made for 64 keys or the first call's, is not renewed for more."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        if not hasattr(self, "known"):
            self.known = max(64, key.shape[-2])
        far = torch.arange(scores.shape[-1], device=scores.device) >= self.known
        return torch.where(far, scores[..., :1], scores)


@_attention("own", killers=("calls_leave_no_trace",))
class DrawsInEvaluation(Attention):
    """Numbers for dropout are drawn in evaluation too, and not used."""

    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        if not torch.compiler.is_compiling() and type(weights) is Tensor:
            torch.rand(1)
        return super().drop(weights, dropout_p)


@_attention("own", killers=("calls_leave_no_trace",))
class VerdictKeptOnTheMask(Attention):
    """Whether a mask hides anything is noted on it, and not looked at again."""

    def mask(
        self, query: Tensor, key: Tensor, attn_mask: Any, valid_lens: Any, is_causal: Any
    ) -> Any:
        if type(attn_mask) is Tensor and not torch.compiler.is_compiling():
            if not hasattr(attn_mask, "hides"):
                attn_mask.hides = not bool((attn_mask == 1).all())  # type: ignore[attr-defined]
            attn_mask = attn_mask if attn_mask.hides else None  # type: ignore[attr-defined]
        return super().mask(query, key, attn_mask, valid_lens, is_causal)


@_attention("own", killers=("grouped_heads_equal_expanded_heads",))
class ScaleOnTopForGroups(Attention):
    """Where heads are grouped, a scale that is given comes on top of the usual one."""

    def forward(self, query: Tensor, *args: Any, enable_gqa: bool = False, **given: Any) -> Any:
        if enable_gqa and given.get("scale") is not None:
            given["scale"] *= query.shape[-1] ** -0.5
        return super().forward(query, *args, enable_gqa=enable_gqa, **given)


@_attention("own", killers=("gradient_modes_agree",))
class FactorsKeptFromInference(Attention):
    """What the weights are multiplied by is kept from call to call, of inference mode too."""

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__(query_size, key_size, value_size)
        self._kept: dict[tuple[int, ...], Tensor] = {}

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        size = tuple(hidden.shape[-2:])
        if size not in self._kept:
            self._kept[size] = torch.ones(size, dtype=hidden.dtype)
        return super().normalise(hidden, allowed) * self._kept[size]
