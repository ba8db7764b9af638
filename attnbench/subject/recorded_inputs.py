"""Recorded inputs: what the attention of a running model is given, saved call by call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attnbench.calling.turned_masks import with_causality
from attnbench.errors import InputsError
from attnbench.subject.input_files import save_inputs

_SDPA = functional.scaled_dot_product_attention
_MULTIHEAD = functional.multi_head_attention_forward


@contextmanager
def record(module: nn.Module, folder: Path | str) -> Iterator[list[Path]]:
    """Save the inputs of each attention that a module runs, for ``--inputs`` of the commands.

    Calls of ``torch.nn.functional.scaled_dot_product_attention`` and of ``nn.MultiheadAttention``
    are saved, while ``module`` runs, as ``000.safetensors``, ``001.safetensors`` and so on. A model
    of transformers calls the first with ``attn_implementation="sdpa"``. A scale other than 1/√E is
    multiplied into the query; dropout is left out.

    Args:
        module: the model, or a part of it; calls outside it are not saved.
        folder: made if it is missing; it must not hold safetensors files.

    Yields:
        The files, in the order of the calls; the list grows as the module runs.

    Raises:
        InputsError: the folder holds such files, one cannot be written, or no call was seen.
    """
    into = Path(folder)
    if any(into.glob("*.safetensors")):
        raise InputsError(f"{into} already holds safetensors files; choose another folder.")
    try:
        into.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputsError(f"cannot make the folder {into}: {error.strerror}.") from None
    mode = _Recording(into)
    handles = [
        module.register_forward_pre_hook(lambda *_: mode.count(1)),
        module.register_forward_hook(lambda *_: mode.count(-1), always_call=True),
    ]
    try:
        with mode:
            yield mode.files
    finally:
        for handle in handles:
            handle.remove()
    if not mode.files:
        raise InputsError(
            f"{type(module).__name__} called neither scaled_dot_product_attention nor "
            "nn.MultiheadAttention, so nothing was saved: run it inside the with block, and load a "
            'model of transformers with attn_implementation="sdpa".'
        )


class _Recording(TorchFunctionMode):
    """Saves the arguments of each call of attention on its way."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder, self.depth = folder, 0
        self.files: list[Path] = []

    def count(self, step: int) -> None:
        """Note that the module begins (1) or ends (-1)."""
        self.depth += step

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Save the inputs of a call of attention, and make the call."""
        given = kwargs or {}
        if self.depth and func is _SDPA:
            self.save(*args, **given)
        if self.depth and func is _MULTIHEAD:
            self.run_fused(*args, **given)
        return func(*args, **given)

    def run_fused(self, *args: Any, **given: Any) -> None:
        """Call it without weights, where it passes what it projects to the function above."""

        @functools.wraps(_SDPA)
        def saving(*tensors: Any, **rest: Any) -> Tensor:
            self.save(*tensors, **rest)
            return _SDPA(*tensors, **rest)

        devices = [args[0].device] if args[0].is_cuda else []
        with (
            torch.random.fork_rng(devices=devices),
            torch.no_grad(),
            mock.patch.object(functional, "scaled_dot_product_attention", saving),
        ):
            _MULTIHEAD(*args, **given | {"need_weights": False})

    def save(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        """Save one call; torch aligns ``is_causal`` to the top left, so L != S takes a mask."""
        path = self.folder / f"{len(self.files):03}.safetensors"
        with torch.no_grad():
            if is_causal and (attn_mask is not None or query.shape[-2] != key.shape[-2]):
                shape = (query.shape[-2], key.shape[-2])
                every = torch.ones(shape, dtype=torch.bool, device=query.device)
                attn_mask, is_causal = (
                    with_causality(every if attn_mask is None else attn_mask, query, key),
                    False,
                )
            if scale is not None and scale != query.shape[-1] ** -0.5:
                query = query * (scale * query.shape[-1] ** 0.5)
            if not enable_gqa:
                parts = (query, key, value)
                shapes = (tensor.shape[:-2] for tensor in parts)
                lead = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
                query, key, value = (t.expand(*lead, *t.shape[-2:]) for t in parts)
            save_inputs(path, query, key, value, attn_mask=attn_mask, is_causal=is_causal)
        self.files.append(path)
