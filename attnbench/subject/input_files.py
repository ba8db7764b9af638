"""Files of inputs: saved, or recorded while a model runs, read, and held to what attention takes.

The file is a safetensors file with the tensors ``query``, ``key``, ``value`` and, optionally,
``attn_mask`` or ``valid_lens``, in the shapes that :func:`attnbench.attend` takes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from attnbench.attention.arguments import check_inputs, check_lead
from attnbench.calling.adapted_specs import with_causality
from attnbench.errors import AttnbenchError, InputsError, nearest
from attnbench.subject.tensors import Inputs

_NEEDED = ("query", "key", "value")
_KNOWN = (*_NEEDED, "attn_mask", "valid_lens")
_SDPA = functional.scaled_dot_product_attention
_MULTIHEAD = functional.multi_head_attention_forward


def save_inputs(
    path: Path | str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    attn_mask: Tensor | None = None,
    valid_lens: Tensor | None = None,
    is_causal: bool = False,
) -> None:
    """Save inputs for ``attnbench bench --inputs`` and other commands.

    Args:
        path: file to write.
        query: ``(..., L, Eq)``.
        key: ``(..., S, Ek)``; its heads may divide the query's.
        value: ``(..., S, Ev)``.
        attn_mask: boolean (True = may attend) or floating, broadcasts to ``(..., L, S)``.
        valid_lens: ``(B,)`` or ``(B, L)``.
        is_causal: also hide the future.

    Raises:
        InputsError: the tensors do not fit each other, or the file cannot be written.
    """
    named = {"query": query, "key": key, "value": value}
    named |= {} if attn_mask is None else {"attn_mask": attn_mask}
    named |= {} if valid_lens is None else {"valid_lens": valid_lens}
    _fitted(str(path), named, is_causal)
    tensors = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in named.items()}
    try:
        save_file(tensors, path, metadata={"is_causal": str(is_causal).lower()})
    except (OSError, SafetensorError) as error:
        raise InputsError(f"cannot write the inputs to {path}: {error}.") from None


def load_inputs(path: Path | str) -> Inputs:
    """Load the inputs of a file to the CPU.

    Raises:
        InputsError: the file is missing, damaged, lacks a tensor, or its tensors do not fit.
    """
    path = Path(path)
    if not path.is_file():
        raise InputsError(f"there is no file {str(path)!r} (looked at {path.resolve()}).")
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in names if name in _KNOWN}
    except (OSError, SafetensorError) as error:
        raise InputsError(
            f"{path} is not a whole safetensors file ({error}); save it again with "
            "attnbench.saved_inputs.save_inputs or safetensors.torch.save_file."
        ) from None
    for name in names:
        if name not in _KNOWN:
            raise InputsError(f"{path} holds an unknown tensor {name!r}. {nearest(name, _KNOWN)}")
    missing = [name for name in _NEEDED if name not in tensors]
    if missing:
        raise InputsError(
            f"{path} lacks {' and '.join(missing)}: it holds {', '.join(names) or 'no tensor'}. "
            "Save query, key and value, and attn_mask if there is one."
        )
    return _fitted(str(path), tensors, metadata.get("is_causal") == "true")


def _fitted(where: str, tensors: dict[str, Tensor], is_causal: bool) -> Inputs:
    """Make inputs of named tensors, after checking shapes and dtypes."""
    query, key, value = (tensors[name] for name in _NEEDED)
    given = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in _NEEDED)
    grouped = key.shape[:-2] != query.shape[:-2]
    try:
        check_inputs(query, key, value)
        if 0 in (query.numel(), key.numel(), value.numel()):
            raise InputsError(f"nothing to attend to: {given}.")
        if not grouped:
            check_lead(query, key, value)
        elif not _fits_in_groups(query, key, value):
            raise InputsError(f"leading sizes neither are equal nor grouped heads: {given}.")
        inputs = Inputs(
            query,
            key,
            value,
            attn_mask=tensors.get("attn_mask"),
            valid_lens=tensors.get("valid_lens"),
            is_causal=is_causal,
            enable_gqa=grouped,
        )
        inputs.mask  # noqa: B018 -- folding it is what checks it
    except AttnbenchError as error:
        raise InputsError(f"{where}: {error}") from None
    return inputs


def _fits_in_groups(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether key and value have grouped heads, and all other leading sizes are equal."""
    return (
        query.dim() == key.dim() == value.dim() > 2
        and query.shape[:-3] == key.shape[:-3]
        and key.shape[:-2] == value.shape[:-2]
        and query.shape[-3] % key.shape[-3] == 0
    )


def digest(path: Path | str) -> str:
    """The SHA-256 of a file, in hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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
    with (
        mode,
        module.register_forward_pre_hook(lambda *_: mode.count(1)),
        module.register_forward_hook(lambda *_: mode.count(-1), always_call=True),
    ):
        yield mode.files
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
        lengths = query.shape[-2], key.shape[-2]
        with torch.no_grad():
            if is_causal and (attn_mask is not None or lengths[0] != lengths[1]):
                every = torch.ones(lengths, dtype=torch.bool, device=query.device)
                attn_mask = with_causality(every if attn_mask is None else attn_mask, query, key)
                is_causal = False
            if scale is not None and scale != query.shape[-1] ** -0.5:
                query = query * (scale * query.shape[-1] ** 0.5)
            if not enable_gqa:
                parts = (query, key, value)
                shapes = (tensor.shape[:-2] for tensor in parts)
                lead = torch.broadcast_shapes(*shapes)  # type: ignore[no-untyped-call]
                query, key, value = (t.expand(*lead, *t.shape[-2:]) for t in parts)
            save_inputs(path, query, key, value, attn_mask=attn_mask, is_causal=is_causal)
        self.files.append(path)
