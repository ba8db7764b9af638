"""The cases that benchmarks list: named sets, real workloads, and saved inputs.

Listing cases does not import torch; building one does.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.timing.contract import DIRECTIONS
from attnbench.cases.case import Case
from attnbench.errors import UsageError, check_name
from attnbench.specs import DTYPES

LAYER_SIZE = 64
"""E of the layer cases; a layer that does not support it gets the nearest E that it supports."""


@functools.cache
def _data() -> Mapping[str, Any]:
    text = resources.files("attnbench.benchmark").joinpath("workloads.toml").read_text("utf-8")
    return tomllib.loads(text)


def workloads() -> Mapping[str, Mapping[str, Any]]:
    """The sizes, mask and source of each real workload, by name."""
    table: Mapping[str, Mapping[str, Any]] = _data()["workloads"]
    return table


def set_names() -> list[str]:
    """The names of the sets of cases."""
    return list(_data()["sets"])


def workload(
    name: str, *, dtype: str = "float32", device: str = "cpu", direction: str = "forward"
) -> BenchCase:
    """The case of a real workload.

    Raises:
        UnknownNameError: no workload has that name.
    """
    check_name("workload", name, workloads())
    row = workloads()[name]
    size = row["query_size"]
    sizes = (size, row.get("key_size", size), row.get("value_size", size))
    lengths = (tuple(row["lead"]), row["q_len"], row["kv_len"])
    case = Case(*lengths, *sizes, dtype, device, row["mask"])
    return BenchCase(case, direction, name, row.get("kv_heads"))


def _part(
    part: Mapping[str, Any], devices: Sequence[str], dtypes: Sequence[str] | None
) -> Iterator[BenchCase]:
    directions = part.get("directions", ["forward"])
    axes = product(devices, dtypes or part.get("dtypes", ["float32"]), directions)
    for device, dtype, direction in axes:
        check_name("dtype", dtype, DTYPES)
        check_name("direction", direction, DIRECTIONS)
        for name in part.get("workloads", ()):
            yield workload(name, dtype=dtype, device=device, direction=direction)
        lengths = part.get("lengths", ())
        if "batches" in part:
            for batch, length in product(part["batches"], lengths):
                yield layer_case(direction, batch, length, dtype=dtype, device=device)
            continue
        for length, mask in product(lengths, part.get("masks", ["none"])):
            size = part["size"]
            lead = tuple(part["lead"])
            case = Case(lead, length, length, size, size, size, dtype, device, mask)
            yield BenchCase(case, direction, f"L=S={length}")


def layer_case(
    direction: str,
    batch: int,
    length: int,
    size: int = LAYER_SIZE,
    *,
    dtype: str = "float32",
    device: str = "cpu",
) -> BenchCase:
    """Make a layer case.

    Args:
        direction: ``prefill`` or ``decode``.
        batch: number of sequences.
        length: tokens of each sequence (S); decoding computes the output of the last one.
        size: E of the hidden states.
        dtype, device: dtype and device of the hidden states.
    """
    q_len = 1 if direction == "decode" else length
    case = Case((batch,), q_len, length, size, size, size, dtype, device)
    return BenchCase(case, direction, f"B={batch} S={length}")


def saved(path: Path | str, *, device: str = "cpu", dtype: str | None = None) -> BenchCase:
    """The case of a file of saved inputs.

    Raises:
        InputsError: the file is missing, damaged or lacks a tensor.
        UsageError: ``dtype`` is not the dtype of the tensors.
    """
    import torch

    from attnbench.subject.input_files import digest, load_inputs

    path = Path(path)
    inputs = load_inputs(path)
    name = str(inputs.query.dtype).removeprefix("torch.")
    if dtype is not None and dtype != name:
        raise UsageError(
            f"{path} holds {name} tensors, but --dtype asks for {dtype}. Saved inputs are measured "
            "in their own dtype."
        )
    mask = "none"
    if inputs.attn_mask is not None:
        mask = "boolean" if inputs.attn_mask.dtype == torch.bool else "floating"
    elif inputs.valid_lens is not None:
        mask = "padding" if inputs.valid_lens.dim() == 1 else "lengths_2d"
    elif inputs.is_causal:
        mask = "causal"
    (*lead, q_len, query_size), (*_, kv_len, key_size) = inputs.query.shape, inputs.key.shape
    sizes = (query_size, key_size, inputs.value.shape[-1])
    case = Case(tuple(lead), q_len, kv_len, *sizes, name, device, mask)
    heads = inputs.key.shape[-3] if inputs.enable_gqa else None
    return BenchCase(case, "forward", path.name, heads, str(path), digest(path))


@dataclass(frozen=True)
class Selection:
    """The cases that a command asks for.

    They come from a set, from lengths, from workloads, and from a file of saved inputs.

    Args:
        set_name: name of the set; ``None`` for none.
        workloads: names of real workloads.
        lengths: values of S.
        inputs: path of a file of saved inputs.
        dtypes: dtypes that replace those of the set; by default its own.
    """

    set_name: str | None = None
    workloads: Sequence[str] = ()
    lengths: Sequence[int] = ()
    inputs: Path | None = None
    dtypes: Sequence[str] | None = None

    def cases(self, devices: Sequence[str] = ("cpu",), *, layers: bool = False) -> list[BenchCase]:
        """List all cases but that of the file; those of layers only if ``layers`` is true.

        Raises:
            UnknownNameError: no set, workload or dtype has a name.
        """
        parts: list[Mapping[str, Any]] = [{"workloads": self.workloads}]
        if self.set_name is not None:
            check_name("set of cases", self.set_name, set_names())
            parts = [*_data()["sets"][self.set_name], *parts]
        if self.lengths:
            parts += [{**part, "lengths": self.lengths} for part in _data()["lengths"]]
        cases = (case for part in parts for case in _part(part, devices, self.dtypes))
        return list(dict.fromkeys(case for case in cases if layers or not case.of_layers))

    def saved(self, device: str) -> dict[str, Any]:
        """The arguments of :func:`saved` for the file, which may be loaded on another machine."""
        assert self.inputs is not None
        dtype = self.dtypes[0] if self.dtypes else None
        return {"path": str(self.inputs.resolve()), "device": device, "dtype": dtype}
