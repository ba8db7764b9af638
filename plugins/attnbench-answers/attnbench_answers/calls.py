"""The calls on which ways are compared: of every mask, and of whatever else all of them accept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attnbench import Case, Inputs, Subject
from attnbench.errors import InputsError
from attnbench.saved_inputs import load_inputs
from attnbench.testing import LayerSubject
from attnbench_answers.ways import Tensors, short

LENGTH = 17

_MASKS = ("none", "boolean", "causal", "padding", "floating", "empty_row")
_LONG = (65, 129)
"""Queries and keys of a call beyond the blocks of 64 and 128 that kernels have; a layer gets as
many tokens as keys, if it takes so many: windows and roundings of positions show at length only."""

_OPTIONS: dict[str, Any] = {
    "scale": 0.3,
    "window_size": (3, 1),
    "softcap": 2.0,
    "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0]),
    "alibi_slopes": torch.tensor([0.5, 0.25, 0.125, 1.0]),
}
"""Arguments that are tried one at a time, for the four heads of such a call."""


@dataclass(frozen=True)
class ComparedCall:
    """A call of a subject.

    Args:
        words: what it is called in the report.
        case: the case of its module.
        inputs: its inputs.
    """

    words: str
    case: Case
    inputs: Any

    @property
    def tensors(self) -> list[Tensor]:
        """The floating tensors that a way gets in its own dtype."""
        given = self.inputs
        if hasattr(given, "hidden"):
            return [given.hidden]
        return [given.query, given.key, given.value]

    def output(
        self, subject: Subject, rows: Tensor | None = None
    ) -> Callable[[nn.Module, Tensors], Tensor]:
        """``call(module, tensors)`` of a way; with boolean ``rows (..., L)``, of these only."""

        def call(module: nn.Module, tensors: Tensors) -> Tensor:
            found = subject.output(module, self.given(tensors))
            return found if rows is None else found[rows.expand(found.shape[:-1])]

        return call

    @property
    def empty_rows(self) -> Tensor | None:
        """The queries without keys, boolean ``(..., L)``; ``None`` where each has some."""
        if hasattr(self.inputs, "hidden"):
            return None
        empty: Tensor = ~self.inputs.allowed.any(-1)
        return empty if bool(empty.any()) else None

    def given(self, tensors: Tensors) -> Any:
        """The inputs with other tensors, as in another dtype."""
        if hasattr(self.inputs, "hidden"):
            return self.inputs.replace(hidden=tensors[0])
        query, key, value = tensors
        mask = self.inputs.attn_mask
        if mask is not None and mask.is_floating_point():
            mask = mask.to(query.dtype)
        return self.inputs.replace(query=query, key=key, value=value, attn_mask=mask)


def made(subject: Subject, case: Case, weights: str | None) -> nn.Module:
    """The subject's module in evaluation mode, with weights from a file if one is given.

    Raises:
        InputsError: the weights do not fit.
    """
    module, _ = subject.build(case)
    if weights is None:
        return module
    try:
        parts = dict(module.named_modules())
        state = {n: value for n, value in load_file(weights).items() if not _is_beyond(n, parts)}
        module.load_state_dict(state)
    except Exception as error:
        text = " ".join(str(error).split())
        raise InputsError(f"--weights {weights} do not fit {subject.name}: {text}") from None
    return module.to(getattr(torch, case.dtype))


def _is_beyond(name: str, parts: Mapping[str, nn.Module]) -> bool:
    """Whether a weight is of a part outside the layers that a module lacks, as of embeddings."""
    path = name.split(".")[:-1]
    part = parts.get(".".join(path))
    is_lacking = part is None or not any(True for _ in part.parameters())
    return is_lacking and not any(map(str.isdigit, path))


def own_inputs(file: str, dtype: torch.dtype) -> tuple[str, Inputs]:
    """The inputs of a file in a dtype, and what they are called where it holds less than theirs."""
    given = load_inputs(file)
    wide = given.query.dtype
    loses = torch.finfo(wide).eps < torch.finfo(dtype).eps
    words = f"{file}, rounded from {short(wide)} to {short(dtype)}" if loses else file
    return words, given.map(lambda t: t.to(dtype))


def layer_call(
    layer: LayerSubject, dtype: torch.dtype, mask: str = "none", length: int = LENGTH
) -> ComparedCall:
    """A call of a layer on three sequences, of :data:`LENGTH` tokens by default."""
    name = str(dtype).removeprefix("torch.")
    case = layer.legal(Case((3,), length, length, 64, 64, 64, name, mask=mask, seed=1))
    return ComparedCall(f"L={case.q_len}, {mask} mask", case, layer.inputs(case))


def calls_of(
    subjects: Sequence[Subject], dtype: torch.dtype, file: str | None
) -> Iterator[ComparedCall]:
    """Yield the calls that all subjects take, as the first is called.

    Args:
        subjects: layers only, or none of them.
        dtype: the dtype of the inputs.
        file: a safetensors file with query, key and value, instead of drawn ones.
    """
    name = str(dtype).removeprefix("torch.")
    subject = subjects[0]
    if isinstance(subject, LayerSubject):
        for mask in subject.masks:
            yield layer_call(subject, dtype, mask)
        yield layer_call(subject, dtype, length=_LONG[1])
        return
    if file is not None:
        words, own = own_inputs(file, dtype)
        sizes = (own.query.shape[-1], own.key.shape[-1], own.value.shape[-1])
        yield ComparedCall(words, Case((2,), 3, 5, *sizes, name), own)
        return
    drawn = [Case((2, 3), 9, LENGTH, 16, 16, 16, name, mask=mask, seed=1) for mask in _MASKS]
    drawn.append(Case((1, 2), *_LONG, 16, 16, 16, name, mask="causal", seed=1))
    for case in map(subject.legal, drawn):
        if case.dtype == name and not any(one.unsupported(case) for one in subjects):
            words = f"L={case.q_len}, S={case.kv_len}, {case.mask} mask"
            yield ComparedCall(words, case, subject.inputs(case))
    yield from _with_options(subjects, name)


def _with_options(subjects: Sequence[Subject], dtype: str) -> Iterator[ComparedCall]:
    """Yield a call with each argument besides masks that all subjects accept."""
    subject = subjects[0]
    case = subject.legal(Case((2, 4), 9, LENGTH, 16, 16, 16, dtype, seed=1))
    inputs: Inputs = subject.inputs(case)
    if all("enable_gqa" in one.accepts for one in subjects):
        few = {name: getattr(inputs, name)[:, :2] for name in ("key", "value")}
        yield ComparedCall("2 key heads for 4", case, inputs.replace(**few, enable_gqa=True))
    for name, value in _OPTIONS.items():
        if all(name in one.accepts for one in subjects):
            words = name if isinstance(value, Tensor) else f"{name}={value}"
            yield ComparedCall(words, case, inputs.replace(**{name: value}))
