"""Which call of hidden states a callee takes, by small calls in each layout."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnbench.calling.binding import Binding, Fill, Mask, part_of
from attnbench.calling.layer_call import Layer, tables_of
from attnbench.calling.signature import Argument
from attnbench.calling.trials import Callee, parts_of, repeatable
from attnbench.errors import headline

ITEMS, TOKENS, SLOTS = 3, 5, 7
_SIZES = {"B": ITEMS, "L": TOKENS, "S": SLOTS, "Y": 4, "X": 6, "1": 1}
LAYOUTS = ("BLE", "LBE", "BEL", "BEYX", "BYXE", "LE")
_PADDING_AXES = ("BS", "B1S", "B11S", "BLS", "B1LS", "BHLS", "SB")
_SAYS = ("shows", "hides", "added", "ones", "zeros")
_MASKS = ("mask", "padding")
_SHOWN = 3e-6


class LayerCalls:
    """Small calls of a layer on 3 items of 5 tokens."""

    def __init__(self, callee: Callee, binding: Binding) -> None:
        self.callee, self.binding, self.raised = callee, binding, ""

    def tensors(self, tokens: int = TOKENS) -> tuple[Tensor, Tensor]:
        """Hidden states, and a second sequence."""
        generator = torch.Generator().manual_seed(1)
        rows = (4, 6) if "Y" in self.binding.layout else (tokens,)
        hidden = torch.randn(ITEMS, *rows, self.callee.width, generator=generator)
        return hidden, torch.randn(ITEMS, SLOTS, self.callee.width, generator=generator)

    def __call__(
        self,
        hidden: Tensor,
        source: Tensor | None = None,
        real: Tensor | None = None,
        *,
        dtype: str = "float32",
    ) -> Tensor | None:
        """The output; ``None``, with ``raised`` set, if the call raises or gives another shape."""
        try:
            with repeatable(), torch.no_grad():
                kind = getattr(torch, dtype)
                module = Layer(self.callee.at(), self.binding).eval().to(kind)
                more = {} if real is None else {"padding_mask": real}
                other = None if source is None else source.to(kind)
                output: Tensor = module(hidden.to(kind), source=other, **more)
        except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
            self.raised = headline(error)[:160]
            return None
        if output.shape != hidden.shape:
            self.raised = f"it gives {tuple(output.shape)} for {tuple(hidden.shape)}"
            return None
        return output

    def reach(self, real: Tensor | None = None, unlike: Tensor | None = None) -> Tensor | None:
        """Which tokens reach each token ``(B, L, L)``; ``None`` if a call raises.

        Args:
            real: a mask of padding.
            unlike: an output that shows that the mask hides nothing; ``None`` is given then.
        """
        hidden, source = self.tensors()
        source_given = source if "memory" in self.binding.roles.values() else None
        plain = self(hidden, source_given, real)
        if plain is None or not bool(plain.isfinite().all()):
            return None
        if unlike is not None and torch.equal(plain, unlike):
            return None
        found, size = [], float(plain.abs().amax())
        for slot in range(hidden.shape[1]):
            other = hidden.clone()
            other[:, slot] *= -1.5
            moved = self(other, source_given, real)
            if moved is None:
                return None
            found.append((moved - plain).abs().amax(-1) > _SHOWN * size)
        return torch.stack(found, -1)

    def parts(self) -> int:
        """How many times as many features as the hidden states an output has."""
        where, axes = self.binding.output or (None, self.binding.layout)
        hidden, source = _given(self)
        try:
            with repeatable(), torch.no_grad():
                module = self.callee.at()
                rows = hidden if "B" in self.binding.layout else hidden[:1]
                result = Layer(module, self.binding).eval().result(rows, source=source)
                output: Tensor = part_of(result, where, module)
        except (Exception, SystemExit):  # what a call raises is told elsewhere
            return 1
        return output.shape[axes.index("E")] // self.callee.width

    def is_random(self) -> bool:
        """Whether two calls in evaluation differ."""
        hidden, source = self.tensors()
        module = Layer(self.callee.at(), self.binding).eval()
        given = source if self.binding.memory else None
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                one, two = (module(hidden, source=given) for _ in range(2))
        except Exception:
            return False
        return not torch.equal(one, two)

    def mixes(self) -> bool:
        """Whether outputs of other items change with the first."""
        hidden, source = self.tensors()
        given = source if "memory" in self.binding.roles.values() else None
        plain, other = self(hidden, given), hidden.clone()
        other[0] *= -1.5
        moved = self(other, given)
        return plain is None or moved is None or not bool((plain - moved)[1:].abs().amax() <= 1e-4)


def layer_trials(
    callee: Callee, arguments: Sequence[Argument], hidden: str, memory: str | None
) -> tuple[list[Binding], list[str]]:
    """The bindings with which a layer runs and keeps items apart, and what the others raised."""
    mixing: list[Binding] = []
    raised: list[str] = []
    for layout in LAYOUTS:
        own = _MEMORIES.get(layout, "BSE") if memory else ""
        binding = _tried(callee, arguments, hidden, memory, layout, own)
        if isinstance(binding, str):
            raised.append(f"{layout}: {binding}")
        elif "B" in layout and LayerCalls(callee, binding).mixes():
            mixing.append(binding)
        else:  # in another layout items would be apart as well only where tokens are, too
            return [binding], raised
    return mixing, raised


_MEMORIES = {"LBE": "SBE"}


def _tried(
    callee: Callee,
    arguments: Sequence[Argument],
    hidden: str,
    memory: str | None,
    layout: str,
    memory_axes: str,
) -> Binding | str:
    mains = {hidden: "hidden", **({memory: "memory"} if memory else {})}
    rest = [a for a in arguments if a.name not in mains and a.required]
    errors, made = [], callee.at()
    for more in itertools.islice(itertools.product(*[_options(a, made) for a in rest]), 400):
        values = {a.name: v for a, v in zip(rest, more, strict=True)}
        roles = {
            a.name: mains.get(a.name, a.role or "")
            for a in arguments
            if a.name in mains or a.name in values
        }
        left = tuple(a.name for a in arguments if a.name not in roles)
        binding = Binding(
            shape="layer", layout=layout, memory=memory_axes, roles=roles, values=values, left=left
        )
        calls = LayerCalls(callee, binding)
        for part in _parts(calls, layout):
            placed = binding.replace(output=part)
            output = LayerCalls(callee, placed)(*_given(calls))
            if output is not None and bool(output.isfinite().all()):
                return placed
        errors.append(calls.raised or "it gives no tensor of the shape of the hidden states")
    return errors[0]


def _given(calls: LayerCalls) -> tuple[Tensor, Tensor | None]:
    hidden, source = calls.tensors()
    return hidden, source if calls.binding.memory else None


def _parts(calls: LayerCalls, layout: str) -> Iterator[tuple[Any, str]]:
    """Where tensors of the shape of the hidden states are in what a call gives."""
    hidden, source = _given(calls)
    hidden = hidden if "B" in layout else hidden[:1]
    try:
        with repeatable(), torch.no_grad():
            result = Layer(calls.callee.at(), calls.binding).eval().result(hidden, source=source)
    except (Exception, SystemExit) as error:  # whatever it raises, it does not take this
        calls.raised = headline(error)[:160]
        return
    sizes = {**_SIZES, "E": calls.callee.width}
    wanted = [sizes[letter] for letter in layout]
    for where, part in parts_of(result, None):
        is_wide = layout[-1] == "E" and part.shape[-1] % calls.callee.width == 0
        got = [*part.shape[:-1], calls.callee.width] if is_wide and part.dim() else [*part.shape]
        if got == wanted and part.is_floating_point():
            yield where, layout


def _options(argument: Argument, callee: Any) -> list[Any]:
    """Values to try for an argument that a layer needs."""
    role = argument.role or ""
    if role in ("mask", "padding", "memory_mask", "memory_padding"):
        axes = ("LL", "11LL", "B1LL", "BLL", "BL", "B1L", "B11L")
        kinds = ((1.0, True), (0.0, True), (0.0, False))
        return [None, *(Fill(each, *kind) for each in axes for kind in kinds)]
    if role in ("rotary", "cos", "sin", "embedded_positions"):
        function = callee.forward if isinstance(callee, nn.Module) else callee
        tables = tables_of(function, callee)
        part = {"cos": 0, "sin": 1}.get(role)
        if part is not None:
            tables = [t for t in tables if t.part == part]
        return [*tables, Fill("BLE", 0.5), Fill("LBE", 0.5), None]
    if role in ("causal", "use_cache", "flag", "gqa", "return_weights"):
        return [False]
    if role == "positions":
        return ["BL", "L"]
    if role == "lengths":
        return [None]
    if role == "cache":
        pair = (Fill("BSHD", 0.0), Fill("BSHD", 0.0))
        return [None, pair, (Fill("BHSD", 0.0),) * 2]
    return [None]


def layer_mask(callee: Callee, binding: Binding, name: str) -> Mask | None:
    """The form of a mask by which padding may be said; ``None`` if none hides what it should."""
    calls = LayerCalls(callee, binding)
    base, plain = calls.reach(), calls(*_given(calls))
    if base is None:
        return None
    real = torch.tensor([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1], [1, 1, 1, 0, 0]]).bool()
    apart = ~torch.eye(TOKENS, dtype=torch.bool)
    if not bool((base & ~real[:, None] & apart).any()):
        return None  # tokens that know nothing of each other show no mask
    for axes in _PADDING_AXES:
        for says in _SAYS:
            form = Mask(axes, says)
            roles = {**binding.roles, name: "mask"}
            seen = LayerCalls(callee, binding.replace(masks={name: form}, roles=roles)).reach(
                real, plain
            )
            if seen is None:
                continue
            rows = real[:, :, None] & apart
            if torch.equal(seen & rows, base & real[:, None] & rows):
                return form
    return None
