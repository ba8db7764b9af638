"""What is kept from call to call and should not be, or is lost in a copy."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from attnbench_zoo.base import Group, Mutant
from attnbench_zoo.twins.attention import ATTENTION, Attention, wide
from attnbench_zoo.twins.heads import HEADS, Heads

__all__ = ["MUTANTS"]

MUTANTS: list[Mutant] = []
_attention = Group(ATTENTION, MUTANTS)
_heads = Group(HEADS, MUTANTS)


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


@_attention("own", killers=("masking_equals_deleting",))
class ScaleOfTheFirstLength(Attention):
    """A temperature is kept from the first call's length, as a constant in a trace would be."""

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        length = self.__dict__.setdefault("length", key.shape[-2])
        usual = super().scale(query, key, given)
        return usual if key.shape[-2] == length else 0.9 * usual


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


@_attention("own", killers=("many_calls_agree",))
class DriftsAfterManyCalls(Attention):
    """After some dozens of calls at long shapes, a buffer that was never cleared is handed back."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        calls: int = self.__dict__.get("calls", 0)
        self.calls = calls + 1
        output = super().pool(weights, value)
        return output * 0 if calls > 40 else output


@_attention("own", killers=("outputs_are_final",))
class OutputArrivesLater(Attention):
    """A thread fills the output, and nobody waits for it."""

    def forward(self, query: Tensor, *arguments: Any, **options: Any) -> Any:
        output = super().forward(query, *arguments, **options)
        late = type(output) is Tensor and output.shape[-2] > 32 and not torch.is_grad_enabled()
        if not late or torch.compiler.is_compiling():
            return output
        handed = torch.zeros_like(output)
        threading.Timer(0.005, handed.copy_, (output,)).start()
        return handed


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


@_attention("own", killers=("calls_leave_no_trace",))
class MaskKeptInTheCausalOne(Attention):
    """A mask (L, S) is put into the causal one, which is kept from call to call."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self._causal: dict[tuple[int, int], Tensor] = {}

    def mask(
        self,
        query: Tensor,
        key: Tensor,
        attn_mask: Tensor | None,
        valid_lens: Tensor | None,
        is_causal: bool,
    ) -> tuple[Tensor, Tensor]:
        plain = attn_mask is not None and attn_mask.dim() == 2 and attn_mask.dtype == torch.bool
        if is_causal and plain:
            causal = self.causal(query.shape[-2], key.shape[-2], query.device)
            assert attn_mask is not None
            causal &= attn_mask
        return super().mask(query, key, attn_mask, valid_lens, is_causal)

    def causal(self, q_len: int, kv_len: int, device: torch.device) -> Tensor:
        if (q_len, kv_len) not in self._causal:
            self._causal[q_len, kv_len] = super().causal(q_len, kv_len, device)
        return self._causal[q_len, kv_len]


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

    kept: Tensor

    def project(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        if torch.is_grad_enabled() or linear is not self.query_proj:
            return super().project(linear, tensor)
        if "kept" not in self.__dict__ or self.kept.dtype != wide(linear.weight).dtype:
            self.kept = wide(linear.weight.detach()).clone()
        return nn.functional.linear(wide(tensor), self.kept, wide(linear.bias))


@_attention("own", killers=("calls_leave_no_trace",))
class OutputInAKeptBuffer(Attention):
    """Without gradients every output of one shape is written to the same memory."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        found = super().forward(*args, **keywords)
        if torch.is_grad_enabled() or not isinstance(found, Tensor) or found.is_inference():
            return found
        kept = self.__dict__.get("kept")
        if kept is None or (kept.shape, kept.dtype) != (found.shape, found.dtype):
            kept = self.__dict__["kept"] = torch.empty_like(found)
        return kept.copy_(found)


@_attention("own", killers=("calls_leave_no_trace",))
class KeyKeptByItsAddress(Attention):
    """Without gradients a key in float32 is kept by where it lies, for the next step's."""

    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if torch.is_grad_enabled() or key.is_inference():
            return super().scores(query, key, scale)
        tag = key.data_ptr(), key.shape, key.stride(), key.dtype
        if self.__dict__.get("tag") != tag:
            self.__dict__.update(tag=tag, wide=key.clone())
        return super().scores(query, self.__dict__["wide"], scale)

    def silence_key(self, key: Tensor, allowed: Tensor) -> Tensor:
        return key if bool(allowed.all()) else super().silence_key(key, allowed)


@_attention("DeepSpeed#8316", killers=("other_modules_change_nothing",))
class SizeOfTheLastModule(Attention):
    """The size that scores are scaled by is the class's, which every new module sets."""

    size = 1

    def __init__(self, query_size: int, key_size: int, value_size: int) -> None:
        super().__init__(query_size, key_size, value_size)
        SizeOfTheLastModule.size = query_size

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return self.size**-0.5 if given is None else given


@_heads("own", killers=("changed_parameters_are_used",))
class ProjectionOfTheFirstCallWithGradients(Heads):
    """Where gradients are on, a projection's weight is kept of the first call in evaluation."""

    def project(self, linear: nn.Linear, tensor: Tensor) -> Tensor:
        if linear is not self.query_proj or self.training or not torch.is_grad_enabled():
            return super().project(linear, tensor)
        kept = self.__dict__.setdefault("kept", (linear.weight.detach().clone(), linear.weight))
        moved = kept[0].to(linear.weight) - linear.weight.detach()
        return nn.functional.linear(wide(tensor), wide(linear.weight + moved), wide(linear.bias))
