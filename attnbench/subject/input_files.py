"""Files of saved inputs: they are written, read, and held to what attention takes.

The file is a safetensors file with the tensors ``query``, ``key``, ``value`` and, optionally,
``attn_mask`` or ``valid_lens``, in the shapes that :func:`attnbench.attend` takes.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnbench.attention.arguments import check_inputs, check_lead
from attnbench.errors import AttnbenchError, InputsError, nearest
from attnbench.subject.tensors import Inputs

_NEEDED = ("query", "key", "value")
_KNOWN = (*_NEEDED, "attn_mask", "valid_lens")


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
    """Save inputs for ``attnbench run --inputs`` and ``attnbench bench --inputs``.

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
