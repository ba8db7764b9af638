"""Layers as subjects: modules on hidden states, with padding and perhaps a cache.

A case's first leading size is B, its ``q_len`` is L and its ``query_size`` is E; the other sizes
follow from these. A cache is used only through :class:`attnbench.CacheSpec`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from attnbench.cases.case import Case
from attnbench.errors import DtypeError, RefusalError, ShapeError
from attnbench.specs import LayerSpec
from attnbench.specs.conventions import LAYER_DEFAULTS
from attnbench.subject.invocation import held
from attnbench.subject.layer_limits import limits_in_words, limits_of
from attnbench.subject.subject import Subject
from attnbench.subject.tensors import Inputs, LayerInputs, lay_out

LONGEST = 64
"""Length of the longest sequence for a layer, unless its cache declares a larger capacity."""

MOST_ROWS = 600
"""The largest first leading size of a case."""

SOURCE = 5
"""Length of the second sequence of a layer that accepts ``source``."""

_ONE_VALUE = "Expected more than 1 value per channel when training"
"""The error with which torch's batch norms refuse to take the variance of one value."""

_REGIMES = ("normal", "equal_keys")
"""Regimes in which all intermediate values stay finite; in ``equal_keys`` all tokens are equal.

``tiny`` is not one of them, since norms add an epsilon, which ``nn.RMSNorm`` takes from the dtype.
"""


@dataclass(frozen=True, eq=False, repr=False)
class LayerSubject(Subject):
    """A layer, with its options; ``spec`` is a :class:`attnbench.LayerSpec`."""

    size_count: ClassVar[int] = 1
    usual: ClassVar[Mapping[str, Any]] = LAYER_DEFAULTS
    least_eps: ClassVar[float] = torch.finfo(torch.float32).eps

    spec: LayerSpec

    @property
    def maker(self) -> LayerSpec:  # type: ignore[override]  # what is made is a layer
        """The spec whose ``make`` gives the module."""
        return self.spec

    @property
    def accepts(self) -> tuple[str, ...]:
        """The keyword arguments that it takes besides ``hidden``."""
        return self.spec.accepts

    @property
    def about(self) -> tuple[str, ...]:
        """A line with its conventions, and the notes of its spec."""
        return (*(f"{self.name}: {note}" for note in self.spec.notes), *super().about)

    @property
    def width(self) -> int | None:
        """The declared number of neighbouring positions that an output may depend on."""
        window = self.spec.window
        return 1 + sum(window) if isinstance(window, tuple) else window

    @property
    def capacity(self) -> int:
        """The length of the longest sequence that it takes."""
        return self.limits[1] or self._most_tokens

    @functools.cached_property
    def limits(self) -> tuple[int, int]:
        """The most rows, and the most tokens, that it takes; 0 where it is not seen to have any."""
        return limits_of(self, MOST_ROWS, self._most_tokens)

    @functools.cached_property
    def limited(self) -> str:
        """Lines on these limits, and on outputs that follow the number of tokens."""
        return limits_in_words(self)

    @property
    def _most_tokens(self) -> int:
        cache = self.spec.cache
        return LONGEST if cache is None or cache.capacity is None else cache.capacity

    @property
    def masks(self) -> tuple[str, ...]:
        """The kinds of mask for which it makes promises."""
        if "padding_mask" not in self.accepts:
            return ("none",)
        left = "left_padding_is_inert" in self.laws
        return ("none", "padding", "left_padding") if left else ("none", "padding")

    def legal(self, case: Case) -> Case:
        """The nearest case whose sizes, dtype, mask and values are legal here."""
        size = self._nearest(case.query_size)
        length = self.spec.tokens or min(case.q_len, self.capacity)
        return case.replace(
            lead=(min(case.lead[0], self.limits[0] or MOST_ROWS) if case.lead else 1,),
            q_len=length,
            kv_len=length,
            query_size=size,
            key_size=size,
            value_size=size,
            dtype=case.dtype if case.dtype in self.dtypes else self.dtypes[0],
            mask=case.mask if case.mask in self.masks else "none",
            regime=case.regime if case.regime in _REGIMES else "normal",
        ).legal()

    def make(self, query_size: int, *_: int) -> nn.Module:
        """A new module in float32 on the CPU, with parameters from torch's global generator.

        Raises:
            ShapeError: its ``make`` raised; the message says how to declare the legal sizes.
        """
        try:
            return self.spec.make(query_size, **self.options)
        except Exception as error:
            text = f"make({query_size}) of {self.name} raised {type(error).__name__}: {error}"
            if isinstance(error, AttributeError | TypeError):
                text += "\n  make gets E, an int, and nothing else: give make=lambda size: ..."
            elif self.spec.sizes is None:
                text += (
                    "\n  Every E is legal unless the spec says otherwise: give "
                    "sizes=lambda size: ..., the nearest legal one."
                )
            else:
                text += f"\n  sizes gives {query_size} for a legal E."
            raise ShapeError(text) from error

    @functools.cached_property
    def constant_parameters(self) -> tuple[str, ...]:
        """Names as for every subject; none if the layer cannot be made, which a check reports."""
        try:
            return super().constant_parameters
        except ShapeError:
            return ()

    def inputs(self, case: Case) -> LayerInputs:
        """The inputs of a case, from its seed."""
        generator = torch.Generator().manual_seed(case.seed)
        shape = (case.lead[0], case.q_len, case.query_size)
        hidden = torch.randn(shape, generator=generator, dtype=torch.float64)
        if case.regime == "equal_keys":
            hidden = hidden[:, :1].expand(shape)
        hidden = hidden.to(getattr(torch, case.dtype)).to(case.device)
        mask = self._padding(case, generator)
        if "extras" in self.accepts:
            _ = self._one_token  # once, and not where a compiler looks on
        return LayerInputs(lay_out(hidden, case.layout), mask)

    def _padding(self, case: Case, generator: torch.Generator) -> Tensor | None:
        if case.mask == "none":
            return None
        batch, length = case.lead[0], case.q_len
        lengths = torch.randint(0, length + 1, (batch,), generator=generator)
        lengths.clamp_min_(min(self.conventions.empty_rows in ("nan", "refused"), length))
        # with several items, one is full and the last may have one token or none
        first = int(torch.randint(batch, (), generator=generator))
        lengths[first] = length if batch > 1 else max(1, int(lengths[0]))
        slots = torch.arange(length)
        if case.mask == "left_padding":
            slots = slots.flip(0)
        return (slots < lengths[:, None]).to(case.device)

    def output(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The output ``(B, L, E)`` of one call without a cache; zeros at padded slots.

        A layer's output at padded slots is arbitrary, so comparisons must not see it.
        """
        assert isinstance(inputs, LayerInputs)
        output, _ = self.call(module, inputs.hidden, inputs.padding_mask)
        if inputs.padding_mask is None:
            return output
        return torch.where(inputs.padding_mask.unsqueeze(-1), output, output.new_zeros(()))

    def call(
        self,
        module: nn.Module,
        hidden: Tensor,
        padding_mask: Tensor | None = None,
        cache: object = None,
        **beside: Any,
    ) -> tuple[Tensor, Any]:
        """Call the layer; returns its output ``(B, L, E)`` unchanged, and the cache to go on with.

        Args:
            module: module from :meth:`build`.
            hidden: ``(B, L, E)``, which becomes a grid for a layer on one; or ``(B, H, W, E)``.
            padding_mask: ``(B, length + L)``.
            cache: the cache.
            beside: ``source`` and ``extras``; by default constant ones, the same for every item.

        Raises:
            ShapeError, DtypeError, DeviceError: the output violates the contract.
        """
        if 0 < self.limits[0] < hidden.shape[0]:
            raise RefusalError(f"{self.name} raises for more than {self.limits[0]} rows")
        state = {"padding_mask": padding_mask, "cache": cache}
        passed = {name: value for name, value in state.items() if value is not None}
        given = self._on_grid(hidden)
        try:
            result = module(given, **{**self.beside(hidden), **beside, **passed})
        except ValueError as error:
            if _ONE_VALUE in str(error):
                raise RefusalError(f"a batch norm takes no single value: {error}") from error
            raise
        if isinstance(result, tuple):
            if len(result) != 2:
                raise DtypeError(
                    f"{self.name} returned a tuple of {len(result)}, but should return its output "
                    "or (output, cache)."
                )
            result, kept = result
            cache = kept if cache is not None and kept is not None else cache
        output = held(result, self.name, LayerInputs(given), hidden.shape[-1])
        return output.reshape(hidden.shape), cache

    def _on_grid(self, hidden: Tensor) -> Tensor:
        """Tokens ``(B, L, E)`` as ``(B, H, W, E)``, where the layer takes a grid."""
        if not self.spec.grid or hidden.dim() != 3:
            return hidden
        length = hidden.shape[1]
        rows = next((n for n in range(int(length**0.5), 1, -1) if length % n == 0), 1)
        return hidden.reshape(hidden.shape[0], rows, length // rows, hidden.shape[-1])

    def beside(self, hidden: Tensor) -> dict[str, Any]:
        """The constant source, one for all items, and extras, one for all tokens."""
        values: dict[str, Any] = {}
        batch, size = hidden.shape[0], hidden.shape[-1]
        if "source" in self.accepts:
            # numbers that are exact in every dtype, and that a compiler can trace
            numbers = torch.arange(SOURCE * size, device=hidden.device) * 19 % 33 - 16
            values["source"] = (numbers / 8).to(hidden).reshape(SOURCE, size).repeat(batch, 1, 1)
        if "extras" in self.accepts:
            values["extras"] = {
                name: torch.full(hidden.shape[:-1], number, dtype=dtype, device=hidden.device)
                for name, (number, dtype) in self._one_token.items()
            }
        return values

    @functools.cached_property
    def _one_token(self) -> dict[str, tuple[Any, torch.dtype]]:
        """The extras that most tokens have, each with its dtype: others may begin documents."""
        size = self._nearest(8)
        drawn = self.drawn_extras(Case((1,), 16, 16, size, size, size), torch.Generator())
        return {name: (one[0].mode().values.item(), one.dtype) for name, one in drawn.items()}

    def drawn_extras(self, case: Case, generator: torch.Generator) -> dict[str, Tensor]:
        """The extras of a case, ``(B, L)`` each, by its spec.

        Raises:
            ShapeError: they have another shape.
        """
        assert self.spec.extras is not None
        drawn, wanted = self.spec.extras(case, generator), (case.lead[0], case.q_len)
        tensors = dict(drawn) if isinstance(drawn, Mapping) else {type(drawn).__name__: drawn}
        for name, tensor in tensors.items():
            shape = tuple(getattr(tensor, "shape", ()))
            if shape != wanted:
                raise ShapeError(
                    f"extras of {self.name} gave {name!r} of shape {shape} for B = {wanted[0]} and "
                    f"L = {wanted[1]}, but should give a dict of {wanted}, one entry a token.",
                )
        return {name: tensor.to(case.device) for name, tensor in tensors.items()}

    def new_cache(self, module: nn.Module, batch_size: int) -> Any:
        """Create an empty cache."""
        assert self.spec.cache is not None
        cache = self.spec.cache.new(module, batch_size)
        if cache is None:
            raise DtypeError(f"new of the cache of {self.name} gave None, not a cache.")
        return cache

    def select(self, cache: Any, index: Tensor) -> Any:
        """Select rows of a cache; the old cache must not be used again."""
        return self._changed("select", cache, index)

    def crop(self, cache: Any, length: int) -> Any:
        """Keep the first ``length`` slots of a cache; the old cache must not be used again."""
        return self._changed("crop", cache, length)

    def _changed(self, operation: str, cache: Any, argument: Any) -> Any:
        change = getattr(self.spec.cache, operation)
        if change is None:
            raise NotImplementedError(f"its CacheSpec has no {operation}")
        given = change(cache, argument)
        return cache if given is None else given
