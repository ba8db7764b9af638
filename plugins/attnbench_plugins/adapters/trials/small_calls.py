"""Small calls of a callee: what is called anew each time, on tensors whose sizes all differ."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.errors import RefusalError, headline
from attnbench.styles import source_line_of
from attnbench_plugins.adapters.binding import Binding, is_plain
from attnbench_plugins.adapters.calls.attention_call import Attention
from attnbench_plugins.adapters.calls.caches import copied
from attnbench_plugins.adapters.calls.layer_call import Layer
from attnbench_plugins.adapters.refusing import Raised

ITEMS, HEADS, QUERIES, KEYS, WIDTH = 3, 2, 5, 7, 16
SIZES = {"B": ITEMS, "H": HEADS, "L": QUERIES, "S": KEYS, "1": 1, "G": ITEMS * HEADS}
GRID = (4, 6)
_MANY = 40
"""The number of tokens that shows whether they are taken in blocks or windows."""
SHOWN = 3e-6
"""The least change of an output, in proportion, that shows that a slot reaches it."""


class Callee:
    """A callee that is called anew each time, with equal parameters and random numbers.

    Args:
        make: gives the function, or a module for Eq, Ek and Ev.
        width: the size of a trial's features.
        sides: those of query, key and value, where they differ, as of a memory of two directions.
    """

    def __init__(
        self,
        make: Callable[[int, int, int], Any],
        width: int = WIDTH,
        sides: tuple[int, int, int] | None = None,
    ) -> None:
        self.make, self.width, self.sides = make, width, sides or (width,) * 3
        self._made: dict[tuple[int, int, int], Any] = {}
        self.spent = 0  # calls in the search for the right one

    def at(self, *sizes: int) -> Any:
        """The callee of these sizes, in evaluation and in float32."""
        key = sizes if len(sizes) == 3 else self.sides
        if key not in self._made:
            with repeatable():
                made = self.made(*key)
            if isinstance(made, nn.Module):
                made.eval()  # which somebody's own train() may return nothing from
                made.float()
            self._made[key] = made
        made = self._made[key]
        if not isinstance(made, nn.Module):
            return made
        try:
            return copied(made)
        except (TypeError, RuntimeError):  # it holds what cannot be copied, as one with a graph
            return self._made.pop(key)

    def is_made(self) -> bool:
        """Whether its constructor raises nothing for this width."""
        try:
            self.at()
        except Exception:  # whatever that is
            return False
        return True

    def made(self, *sizes: int) -> Any:
        """A new callee for tensors of these sizes; its constructor knows the width alone."""
        pairs = zip(sizes, self.sides, strict=True)
        return self.make(*(size * self.width // side for size, side in pairs))

    def scaled(self, width: int) -> tuple[int, ...]:
        """The sizes of query, key and value for another width."""
        return tuple(width * side // self.width for side in self.sides)


@contextmanager
def repeatable() -> Iterator[None]:
    """With torch's generators at a fixed place, and restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # of the CPU alone: others take 1 ms
        yield


class Calls:
    """Small calls of a bound callee, on 3 items, 5 queries or tokens and 7 keys.

    Args:
        callee: what is called.
        binding: how.
        raised: what the last call raised.
    """

    def __init__(self, callee: Callee, binding: Binding) -> None:
        self.callee, self.binding, self.raised = callee, binding, Raised("")
        self.is_layer = binding.shape == "layer"
        self.dtype, self.training, self.graded = "float32", False, False

    def replace(self, *, training: bool = False, graded: bool = False, **changes: Any) -> Calls:
        """Calls of the same callee with another binding, in training or with gradients."""
        other = Calls(self.callee, self.binding.replace(**changes))
        other.dtype, other.training, other.graded = self.dtype, training, graded
        return other

    def module(self, tensors: Sequence[Tensor]) -> Layer | Attention:
        """The bound callee for these tensors, in evaluation."""
        sides = [tensor.shape[-1] for tensor in tensors]
        kind = Layer if self.is_layer else Attention
        return kind(self.callee.at(*(sides * 3 if self.is_layer else sides)[:3]), self.binding)

    def tensors(
        self, queries: int = QUERIES, keys: int = KEYS, sizes: tuple[int, ...] = ()
    ) -> list[Tensor]:
        """Query, key and value; or hidden states, and a second sequence if it takes one."""
        bound, widths = self.binding, sizes or self.callee.sides
        lead: tuple[int, ...] = (ITEMS, HEADS) if "H" in bound.layout else (ITEMS,)
        queries = bound.tokens or queries
        shapes = [(*lead, n) for n in (queries, queries if bound.square else keys)]
        if "Y" in bound.layout:
            side = math.isqrt(bound.tokens)
            shapes[0] = (ITEMS, *((side, side) if side else GRID))
        shapes = shapes[: 1 + bool(bound.memory)] if self.is_layer else [*shapes, shapes[1]]
        generator = torch.Generator().manual_seed(1)
        return [
            torch.randn(*shape, width, generator=generator)
            for shape, width in zip(shapes, widths, strict=False)
        ]

    def many(self) -> tuple[list[Tensor], Tensor | None]:
        """As many tokens as show blocks and windows, or few if those raise, and the output."""
        tensors = self.tensors(_MANY)
        if (output := self(tensors)) is None:
            tensors, output = self.tensors(), self()
        return tensors, output

    def result(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        """What the callee itself gives, and the callee; ``None`` twice if it raises."""
        self.callee.spent += 1
        return self._tried(lambda: self._result(tensors)) or (None, None)

    def _result(self, tensors: Sequence[Tensor]) -> tuple[Any, Any]:
        module: Any = self.module(tensors).eval()
        first = tensors[0] if "B" in self.binding.layout else tensors[0][:1]
        return self._given([first, *tensors[1:]], module.result), module.callee

    def _given(self, tensors: Sequence[Tensor], call: Callable[..., Any], **given: Any) -> Any:
        """What a call gives for tensors, the second of which is the other sequence of a layer."""
        if not self.is_layer:
            return call(*tensors, **given)
        return call(tensors[0], source=next(iter(tensors[1:]), None), **given)

    def _tried(self, call: Callable[[], Any]) -> Any:
        """What a call gives; ``None``, with ``raised`` set, if it raises."""
        try:
            with repeatable(), torch.set_grad_enabled(self.graded):
                return call()
        except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
            cause = error.__cause__ if isinstance(error, RefusalError) else None
            told, place = headline(cause or error)[:160], source_line_of(cause or error)
            told = f"{told.rstrip('. ')} at {place}" if place else told
            self.raised = Raised(told)
            frames = traceback.walk_tb((cause or error).__traceback__)
            places = ((frame.f_globals.get("__name__", ""), line) for frame, line in frames)
            own = (line for name, line in places if name.partition(".")[0] not in _PACKAGES)
            self.raised.reached = next(own, 0)
            return None

    def __call__(
        self, tensors: Sequence[Tensor] | None = None, *, dtype: str = "", **given: Any
    ) -> Tensor | None:
        """The output; ``None``, with ``raised`` set, if the call raises or gives another shape."""
        found = self.both(tensors, dtype=dtype, **given)
        return None if found is None else found[0]

    def both(
        self, tensors: Sequence[Tensor] | None = None, *, dtype: str = "", **given: Any
    ) -> tuple[Tensor, Any] | None:
        """The output, and the weights or what comes with it."""
        plain = self.tensors() if tensors is None else tensors
        kind, is_scores = getattr(torch, dtype or self.dtype), self.binding.shape == "scores"

        def call() -> Any:
            module: Any = self.module(plain).train(self.training).to(kind)
            own = [t.to(kind, copy=True).requires_grad_(self.graded) for t in plain]
            beside = self.binding.weights is not None
            asked = {"return_weights": True} if beside and not is_scores else {}
            found = self._given(own, module, **asked, **given)
            if is_scores:
                return found, found
            return found if beside else (found, None)

        found: tuple[Any, Any] | None = self._tried(call)
        if found is None or is_scores:
            return found
        last = plain[0] if self.is_layer else plain[2]
        wanted = (*plain[0].shape[:-1], last.shape[-1])
        if not is_plain(found[0]) or found[0].shape != wanted:
            kind = tuple(getattr(found[0], "shape", ())) or type(found[0]).__name__
            self.raised = Raised(f"it gives {kind} for {wanted}")
            return None
        return found

    def unreached(self) -> list[str]:
        """The parameters that no gradient of the output of an attention reaches."""
        module: Any = self.module(self.tensors())
        named = dict(module.named_parameters())

        def call() -> list[str]:
            total = module(*self.tensors()).sum()
            found = torch.autograd.grad(total, [*named.values()], allow_unused=True)
            return [n for n, each in zip(named, found, strict=True) if each is None]

        names: list[str] | None = self.replace(graded=True)._tried(call) if named else None
        return names or []

    def reach(
        self, queries: int = QUERIES, keys: int = KEYS, unlike: Tensor | None = None, **given: Any
    ) -> Tensor | None:
        """Which keys, or tokens, reach each query ``(B, L, S)``; ``None`` if a call raises.

        Args:
            queries, keys: how many.
            unlike: an output that shows that a mask hides nothing; ``None`` is given then.
            given: the mask.
        """
        moved = self.moves(queries, keys, unlike, **given)
        return None if moved is None else moved > SHOWN

    def moves(
        self, queries: int = QUERIES, keys: int = KEYS, unlike: Tensor | None = None, **given: Any
    ) -> Tensor | None:
        """How far each key, or token, moves each query's output, in proportion; as of `reach`."""
        tensors = self.tensors(queries, keys)
        plain = self(tensors, **given)
        if plain is None or not bool(plain.isfinite().all()):
            return None
        if unlike is not None and torch.equal(plain, unlike):
            return None
        moving = [0] if self.is_layer else [1, 2]
        size, found = float(plain.abs().amax()), []
        for slot in range(tensors[moving[0]].shape[-2]):
            other = [tensor.clone() for tensor in tensors]
            for place in moving:
                other[place][..., slot, :] *= -1.5
            moved = self(other, **given)
            if moved is None:
                return None
            found.append((moved - plain).abs().amax(-1).reshape(ITEMS, -1, plain.shape[-2]).amax(1))
        return torch.stack(found, -1) / size

    def is_random(self) -> bool:
        """Whether two calls in evaluation differ."""
        tensors = self.tensors()

        def call() -> bool:
            module: Any = self.module(tensors).eval()
            one, two = (self._given([t.clone() for t in tensors], module) for _ in range(2))
            return not torch.equal(one, two)

        return bool(self._tried(call))

    def mixes(self) -> bool:
        """Whether outputs of other items change with the first, or one item alone raises."""
        tensors = self.tensors(1 if self.binding.one_query else QUERIES)
        if self.binding.one_query and self.both([tensor[:1] for tensor in tensors]) is None:
            return True
        plain = self.both(tensors)
        for place, others in ((0, slice(1, None)), (-1, slice(-1))):
            other = [tensor.clone() for tensor in tensors]
            for tensor in other:
                tensor[place] *= -1.5
            moved = self.both(other)
            if plain is None or moved is None:
                return True
            for a, b in zip(plain, moved, strict=True):
                if a is not None and b is not None and not (a - b)[others].abs().amax() <= 1e-4:
                    return True
        return False


_PACKAGES = ("attnbench", __name__.partition(".")[0], "torch", "contextlib")
_CLEAR = 1e-4


def close(got: Tensor, expected: Tensor) -> bool:
    """Whether two tensors are the same but for rounding."""
    expected = expected.expand(got.shape) if expected.dim() == got.dim() else expected
    return got.shape == expected.shape and torch.allclose(got, expected, _CLEAR, _CLEAR)


def swapped(tensor: Tensor, axis: int) -> Tensor:
    """A tensor with its first and last place exchanged: no shift, which a convolution follows."""
    first, others, last = torch.split(tensor, [1, tensor.shape[axis] - 2, 1], axis)
    return torch.cat([last, others, first], axis)
