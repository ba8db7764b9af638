"""The cases that benchmarks list: named sets, real workloads, and saved inputs.

Listing them imports no torch; building one does.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnbench.benchmark.measuring.contract import DIRECTIONS
from attnbench.cases.case import Case
from attnbench.errors import UnknownNameError, UsageError, nearest
from attnbench.specs import DTYPES

if TYPE_CHECKING:
    from torch import nn

    from attnbench.subject.subject import Subject
    from attnbench.subject.tensors import Inputs

__all__ = [
    "BenchCase",
    "cases_of",
    "named_set",
    "saved",
    "set_names",
    "workload",
    "workloads",
    "write_inputs",
]


@dataclass(frozen=True)
class BenchCase:
    """A case, and what is timed at it.

    Args:
        case: sizes, dtype, device, mask and seed.
        direction: a key of :data:`attnbench.benchmark.measuring.contract.DIRECTIONS`.
        workload: the name of a workload, ``L=S=...`` or the name of a file, for people.
        kv_heads: heads of key and value, where they divide the query's.
        path: of the file of saved inputs; the tensors are drawn from the seed if it is ``None``.
        sha256: of that file.
    """

    case: Case
    direction: str = "forward"
    workload: str = ""
    kv_heads: int | None = None
    path: str | None = None
    sha256: str = ""

    @property
    def id(self) -> str:
        """A stable text that names the case, whatever set it was listed in."""
        parts = [self.case.id, self.direction]
        if self.kv_heads is not None:
            parts.append(f"kv{self.kv_heads}")
        if self.path is not None:
            parts.append(f"inputs-{self.sha256[:12]}")
        return "-".join(parts)

    def reason_against(self, subject: Subject) -> str | None:
        """Why a subject does not take this case; ``None`` if it does."""
        if subject.kind == "layer":
            return "it is a layer, and benchmarks call attention with query, key and value"
        if self.case.dtype not in subject.dtypes:
            return f"it supports {', '.join(subject.dtypes)}"
        if subject.maker.equal_sizes and self.case.query_size != self.case.key_size:
            return (
                f"it needs query_size == key_size, and they are {self.case.query_size} and "
                f"{self.case.key_size}"
            )
        if subject.legal(self.case).sizes != self.case.sizes:
            here, there = (
                {f.name: getattr(sizes, f.name) for f in fields(sizes)}
                for sizes in (self.case.sizes, subject.legal(self.case).sizes)
            )
            wanted = [f"{n} = {v}, not {here[n]}" for n, v in there.items() if v != here[n]]
            return f"it does not take these sizes; the nearest have {', '.join(wanted)}"
        if self.kv_heads is not None and "enable_gqa" not in subject.accepts:
            return "it does not take grouped heads"
        return subject.unsupported(self.case)

    def build(self, subject: Subject) -> tuple[nn.Module, Inputs]:
        """The module and the inputs; seeds torch's global generator."""
        import torch

        from attnbench.subject.input_files import load_inputs
        from attnbench.subject.tensors import make_inputs

        case = self.case
        if self.path is None:
            if self.kv_heads is None:
                return subject.build(case)
            module, inputs = subject.build(case.replace(lead=(*case.lead[:-1], self.kv_heads)))
            # of a seed of its own, or its later heads would be drawn with the numbers of the keys
            query = make_inputs(case.replace(kv_len=1, mask="none", seed=case.seed + 1)).query
            return module, inputs.replace(query=query, enable_gqa=True)
        torch.manual_seed(case.seed)
        module = subject.make(case.query_size, case.key_size, case.value_size)
        module = module.to(dtype=getattr(torch, case.dtype), device=case.device).eval()
        inputs = load_inputs(Path(self.path))
        return module, inputs.replace(**{n: t.to(case.device) for n, t in inputs.tensors()})

    def write_inputs(self, path: str) -> None:
        """Write the inputs to a file, as :func:`attnbench.saved_inputs.save_inputs` does."""
        from attnbench.subject.input_files import load_inputs, save_inputs
        from attnbench.subject.tensors import make_inputs

        if self.path is not None:
            inputs = load_inputs(Path(self.path))
        elif self.kv_heads is None:
            inputs = make_inputs(self.case)
        else:
            heads = (*self.case.lead[:-1], self.kv_heads)
            query = make_inputs(self.case.replace(kv_len=1, mask="none", seed=self.case.seed + 1))
            inputs = make_inputs(self.case.replace(lead=heads)).replace(query=query.query)
        save_inputs(
            path,
            inputs.query,
            inputs.key,
            inputs.value,
            attn_mask=inputs.attn_mask,
            valid_lens=inputs.valid_lens,
            is_causal=inputs.is_causal,
        )


@functools.cache
def _data() -> Mapping[str, Any]:
    text = resources.files("attnbench.benchmark").joinpath("workloads.toml").read_text("utf-8")
    return tomllib.loads(text)


def workloads() -> Mapping[str, Mapping[str, Any]]:
    """Sizes, mask and source of each real workload, by name."""
    found: Mapping[str, Mapping[str, Any]] = _data()["workloads"]
    return found


def set_names() -> list[str]:
    """Names of the sets."""
    return list(_data()["sets"])


def workload(
    name: str, *, dtype: str = "float32", device: str = "cpu", direction: str = "forward"
) -> BenchCase:
    """The case of a real workload.

    Raises:
        UnknownNameError: there is none of that name.
    """
    if name not in workloads():
        raise UnknownNameError(f"no workload is called {name!r}. {nearest(name, workloads())}")
    row = workloads()[name]
    size = row["query_size"]
    case = Case(
        lead=tuple(row["lead"]),
        q_len=row["q_len"],
        kv_len=row["kv_len"],
        query_size=size,
        key_size=row.get("key_size", size),
        value_size=row.get("value_size", size),
        dtype=dtype,
        device=device,
        mask=row["mask"],
    )
    return BenchCase(case, direction, name, row.get("kv_heads"))


def named_set(
    name: str, *, devices: Sequence[str] = ("cpu",), dtypes: Sequence[str] | None = None
) -> list[BenchCase]:
    """The cases of a set.

    Args:
        name: of the set.
        devices: on each of which every case is listed.
        dtypes: instead of those of the set.

    Raises:
        UnknownNameError: there is no set or dtype of that name.
    """
    if name not in _data()["sets"]:
        raise UnknownNameError(f"no set of cases is called {name!r}. {nearest(name, set_names())}")
    listed: dict[BenchCase, None] = {}
    for part in _data()["sets"][name]:
        listed.update(dict.fromkeys(_part(part, devices, dtypes)))
    return list(listed)


def _part(
    part: Mapping[str, Any], devices: Sequence[str], dtypes: Sequence[str] | None
) -> Iterator[BenchCase]:
    directions = part.get("directions", ["forward"])
    axes = product(devices, dtypes or part.get("dtypes", ["float32"]), directions)
    for device, dtype, direction in axes:
        _check_names(dtype, direction)
        for name in part.get("workloads", ()):
            yield workload(name, dtype=dtype, device=device, direction=direction)
        for length, mask in product(part.get("lengths", ()), part.get("masks", ["none"])):
            size = part["size"]
            lead = tuple(part["lead"])
            case = Case(lead, length, length, size, size, size, dtype, device, mask)
            yield BenchCase(case, direction, f"L=S={length}")


def _check_names(dtype: str, direction: str) -> None:
    if dtype not in DTYPES:
        raise UnknownNameError(f"no dtype is called {dtype!r}. {nearest(dtype, DTYPES)}")
    if direction not in DIRECTIONS:
        raise UnknownNameError(
            f"no direction is called {direction!r}. {nearest(direction, DIRECTIONS)}"
        )


def saved(
    path: Path, *, device: str = "cpu", dtype: str | None = None, direction: str = "forward"
) -> BenchCase:
    """The case of a file of saved inputs.

    Raises:
        InputsError: the file is missing, damaged or lacks a tensor.
        UsageError: another dtype is asked for than the tensors have.
    """
    import torch

    from attnbench.subject.input_files import digest, load_inputs

    inputs = load_inputs(path)
    own = str(inputs.query.dtype).removeprefix("torch.")
    if dtype is not None and dtype != own:
        raise UsageError(
            f"{path} holds {own} tensors, and --dtype asks for {dtype}: saved inputs are measured "
            "as they are."
        )
    lead = tuple(inputs.query.shape[:-2])
    mask = "none"
    if inputs.attn_mask is not None:
        mask = "boolean" if inputs.attn_mask.dtype == torch.bool else "floating"
    elif inputs.valid_lens is not None:
        mask = "padding" if inputs.valid_lens.dim() == 1 else "lengths_2d"
    elif inputs.is_causal:
        mask = "causal"
    case = Case(
        lead=lead,
        q_len=inputs.query.shape[-2],
        kv_len=inputs.key.shape[-2],
        query_size=inputs.query.shape[-1],
        key_size=inputs.key.shape[-1],
        value_size=inputs.value.shape[-1],
        dtype=own,
        device=device,
        mask=mask,
    )
    heads = inputs.key.shape[-3] if inputs.enable_gqa else None
    return BenchCase(case, direction, path.name, heads, str(path), digest(path))


def write_inputs(cases: Sequence[BenchCase], folder: str) -> list[str]:
    """Write the inputs of some cases into a folder; gives their files."""
    paths = [str(Path(folder) / f"{number}.safetensors") for number in range(len(cases))]
    for case, path in zip(cases, paths, strict=True):
        case.write_inputs(path)
    return paths


def cases_of(
    *,
    name: str | None = None,
    workload_names: Sequence[str] = (),
    inputs: Path | None = None,
    devices: Sequence[str] = ("cpu",),
    dtypes: Sequence[str] | None = None,
) -> list[BenchCase]:
    """The cases that a command asks for: of a set, of workloads, and of a file of saved inputs.

    The set is left out (``name=None``) where workloads or inputs are named alone.
    """
    listed: dict[BenchCase, None] = {}
    if name is not None:
        listed.update(dict.fromkeys(named_set(name, devices=devices, dtypes=dtypes)))
    for device in devices:
        for dtype, each in product(dtypes or ["float32"], workload_names):
            _check_names(dtype, "forward")
            listed[workload(each, dtype=dtype, device=device)] = None
        if inputs is not None:
            listed[saved(inputs, device=device, dtype=dtypes[0] if dtypes else None)] = None
    return list(listed)
