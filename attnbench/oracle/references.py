"""References: the expected output, computed in two ways that share no code.

A :class:`Reference` computes the output of one case vectorised in float64 and, with the spec's
``reference``, in Python floats. Neither uses the mask folding or the softmax of the subjects.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs


def allowed_and_bias(inputs: Inputs) -> tuple[Tensor, Tensor]:
    """The allowed keys and the bias, ``(*lead, L, S)`` each, on the CPU, from the definitions."""
    query, key = inputs.query, inputs.key
    lead, q_len, kv_len = query.shape[:-2], query.shape[-2], key.shape[-2]
    allowed = torch.ones(*lead, q_len, kv_len, dtype=torch.bool)
    bias = torch.zeros(*lead, q_len, kv_len, dtype=torch.float64)
    if inputs.attn_mask is not None:
        mask = inputs.attn_mask.detach().cpu().broadcast_to(allowed.shape)
        if mask.dtype == torch.bool:
            allowed = allowed & mask
        else:
            allowed = allowed & (mask > -math.inf)
            bias = torch.where(allowed, mask.double(), bias)
    slots = torch.arange(kv_len)
    if inputs.valid_lens is not None:
        lens = inputs.valid_lens.detach().cpu()
        lens = lens.reshape(len(lens), *[1] * (len(lead) - 1), -1, 1)
        allowed = allowed & (slots < lens)
    shift = kv_len - q_len
    ahead = slots - torch.arange(q_len)[:, None] - shift  # how far a key lies beyond its query
    if inputs.is_causal or inputs.causal == "always":
        allowed = allowed & (ahead <= (-shift if inputs.causal == "top_left" else 0))
    before, after = inputs.window_size or (-1, -1)
    if before >= 0:
        allowed = allowed & (ahead >= -before)
    if after >= 0:
        allowed = allowed & (ahead <= after)
    if inputs.alibi_slopes is not None:
        slopes = inputs.alibi_slopes.detach().cpu().double()
        bias = bias - slopes[..., None, None] * ahead.abs()
    return allowed, bias


def widened(module: nn.Module, inputs: Inputs) -> tuple[nn.Module, Inputs]:
    """Convert module and inputs to float64 on the CPU, with the values of the narrower dtype."""
    given = {name: tensor.detach().cpu() for name, tensor in inputs.tensors()}
    wide = {name: t.double() if t.is_floating_point() else t for name, t in given.items()}
    return copy.deepcopy(module).cpu().double(), inputs.replace(**wide)


class NormEpsilon:
    """Makes ``rms_norm`` without an epsilon use that of the dtype under test in a wider run.

    torch uses the epsilon of the dtype in which it computes, float32 or wider. All ways to it call
    ``torch.rms_norm``; a mode would make every other function slower, and be seen by code.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.eps = torch.finfo(torch.promote_types(dtype, torch.float32)).eps

    def __enter__(self) -> None:
        plain = self._plain = torch.rms_norm

        def rms_norm(*args: Any, **kwargs: Any) -> Tensor:
            names = ("input", "normalized_shape", "weight", "eps")
            given = dict(zip(names, args, strict=False)) | kwargs
            return plain(**{**given, "eps": self.eps if given.get("eps") is None else given["eps"]})

        torch.rms_norm = rms_norm

    def __exit__(self, *_: object) -> None:
        torch.rms_norm = self._plain


class NoReferenceError(Exception):
    """A subject does not support float64 and fails in it, so there is no reference for it."""


class Reference:
    """The expected output of one case.

    For a scoring function or kernel, the scores of the scoring module are combined with a softmax
    and pooling written out here. A mechanism is its own reference in float64.
    """

    def __init__(self, subject: Subject, module: nn.Module, inputs: Inputs) -> None:
        self.subject, self.dtype = subject, inputs.query.dtype
        self.module, self.inputs = widened(module, inputs)
        self.allowed, self.bias = allowed_and_bias(self.inputs)
        self._is_mechanism = subject.scoring is None
        if not self._is_mechanism:
            # a slot hidden from every query may hold NaN, and 0 times NaN is NaN
            seen = self.allowed.any(-2).unsqueeze(-1)
            self._key, self._value = (
                torch.where(seen, tensor, torch.zeros_like(tensor))
                for tensor in (self.inputs.key, self.inputs.value)
            )

    @functools.cached_property
    def output(self) -> Tensor:
        """The output ``(*lead, L, Ev)`` in float64 on the CPU."""
        if self._is_mechanism:
            with self._reference_run():
                return self.run(self.module, self.inputs)
        return self.weights @ self._value

    def run(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output of a mechanism in float64."""
        return self.subject.output(module, inputs)

    @functools.cached_property
    def scores(self) -> Tensor:
        """Scores ``(*lead, L, S)`` of a scoring function or kernel, with the mask's bias."""
        with self._reference_run():
            scores: Tensor = self.module(self.inputs.query, self._key) + self.bias
        return scores

    @contextlib.contextmanager
    def _reference_run(self) -> Iterator[None]:
        try:
            with torch.no_grad(), NormEpsilon(self.dtype):
                yield
        except Exception as error:
            if "float64" in self.subject.dtypes:
                raise
            raise NoReferenceError(
                f"it does not support float64, and the reference run in float64 raised "
                f"{type(error).__name__}: {error}"
            ) from error

    @functools.cached_property
    def log_weights(self) -> Tensor:
        """Logarithms of the weights ``(*lead, L, S)``; ``-inf`` for hidden keys."""
        scores = self.scores.masked_fill(~self.allowed, -math.inf)
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -math.inf, 0.0)
        log = scores - top
        total = log.exp().sum(-1, keepdim=True)
        log = log - total.log().masked_fill(total == 0, 0.0)
        return log.masked_fill(~self.allowed, -math.inf)

    @functools.cached_property
    def weights(self) -> Tensor:
        """The weights ``(*lead, L, S)`` of a scoring function or kernel."""
        return self.log_weights.exp()

    @property
    def has_scalar(self) -> bool:
        """Whether there is a reference in Python floats that can compute this case."""
        if self.subject.maker.reference is None:
            return False
        # a mechanism's reference gets the allowed keys, but no bias
        return not (self._is_mechanism and bool((self.bias != 0).any()))

    def rows(self, pairs: int | None = None) -> list[tuple[int, int]]:
        """Choose rows of the output, as pairs (item, query): the last, and others spread evenly.

        Args:
            pairs: approximate number of query-key pairs in these rows; ``None`` for all rows. For
                a mechanism, whose reference computes whole items, all rows of some items.
        """
        q_len, kv_len = self.allowed.shape[-2:]
        count = self.allowed[..., 0].numel()
        if pairs is None:
            return [divmod(row, q_len) for row in range(count)]
        if self._is_mechanism:
            items = _spread_indices(max(1, pairs // (q_len * kv_len)), count // q_len)
            return [(item, row) for item in items for row in range(q_len)]
        least = 2 if kv_len <= 8 * pairs else 1
        return [divmod(row, q_len) for row in _spread_indices(max(least, pairs // kv_len), count)]

    def scalar(self, rows: list[tuple[int, int]]) -> Tensor:
        """Compute rows of the output in Python floats: ``(len(rows), Ev)``."""
        reference: Callable[..., Any] | None = self.subject.maker.reference
        assert reference is not None
        tensors = (*(getattr(self.inputs, name) for name in ("query", "key", "value")),)
        flat = [t.reshape(-1, *t.shape[-2:]) for t in (*tensors, self.allowed, self.bias)]
        items: dict[int, list[list[list[Any]]]] = {}
        outputs = []
        for item, row in rows:
            if item not in items:
                items[item] = [tensor[item].tolist() for tensor in flat]
                if self._is_mechanism:
                    items[item][0] = reference(self.module, *items[item][:4])
            query, key, value, allowed, bias = items[item]
            if self._is_mechanism:
                outputs.append(query[row])
            else:
                place = row + len(key) - len(query)
                given = reference, self.module, query[row], key, place
                score = functools.partial(scalar_score, *given)
                outputs.append(_pool_row(score, value, allowed[row], bias[row]))
        return torch.tensor(outputs, dtype=torch.float64)

    def select(self, tensor: Tensor, rows: list[tuple[int, int]]) -> Tensor:
        """Select rows of an output ``(*lead, L, Ev)``: ``(len(rows), Ev)``."""
        flat = tensor.reshape(-1, *tensor.shape[-2:])
        items, queries = zip(*rows, strict=True)
        return flat[list(items), list(queries)]

    def with_scalar(self, rows: list[tuple[int, int]]) -> Tensor:
        """The output ``(*lead, L, Ev)``, with these rows computed in Python floats."""
        flat = self.output.reshape(-1, *self.output.shape[-2:]).clone()
        items, queries = zip(*rows, strict=True)
        flat[list(items), list(queries)] = self.scalar(rows)
        return flat.reshape(self.output.shape)


def _spread_indices(limit: int, count: int) -> list[int]:
    """At most ``limit`` of ``0 .. count - 1``, evenly spread, always including the last."""
    if limit >= count:
        return list(range(count))
    return sorted({count - 1, *(round(i * (count - 1) / (limit - 1)) for i in range(limit - 1))})


@functools.lru_cache(maxsize=64)
def _takes_positions(reference: Callable[..., float]) -> bool:
    """Whether a reference has parameters ``i`` and ``j`` after the first three."""
    return {"i", "j"} <= {*[*inspect.signature(reference).parameters][3:]}


def scalar_score(
    reference: Callable[..., float],
    module: nn.Module,
    query: list[float],
    key: list[list[float]],
    place: int,
    slot: int,
) -> float:
    """The score of one key by a reference, with both positions if it takes them."""
    if _takes_positions(reference):
        return reference(module, query, key[slot], i=place, j=slot)
    return reference(module, query, key[slot])


def _pool_row(
    score: Callable[[int], float],
    value: list[list[float]],
    allowed: list[bool],
    bias: list[float],
) -> list[float]:
    """One row of the output: softmax over the allowed keys, and the weighted mean of values."""
    scores = {s: score(s) + bias[s] for s, is_allowed in enumerate(allowed) if is_allowed}
    scores = {s: x for s, x in scores.items() if x > -math.inf}  # it may hide keys itself
    top = max(scores.values(), default=0.0)
    weights = [math.exp(x - top) for x in scores.values()]
    total = math.fsum(weights)
    columns = zip(*(value[s] for s in scores), strict=True) if scores else ()
    row = [math.fsum(map(operator.mul, weights, column)) / total for column in columns]
    return row or [0.0] * len(value[0])
