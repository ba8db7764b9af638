"""How a side finds its subjects and their inputs: by public names of its own attnbench alone.

:mod:`~attnbench.benchmark.comparing.slot_server` loads this file by its path, so that it runs in
the environment of either side.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

import attnbench


def find(row: dict[str, Any]) -> tuple[Any, Any]:
    """The spec of an address and its scoring function: itself, a kernel's, or ``None``."""
    near: list[Any] = []
    if row["source"] is None or _is_distribution(row["source"]):
        spec = attnbench.get(row["name"])
    else:
        near = _attribute_of(row)
        named = [s for s in near if row["subject"] in ("", _name_of(s))]
        if not named:
            names = ", ".join(map(_name_of, near))
            raise LookupError(f"{row['subject']} is not among {names}")
        spec = named[0]
    if isinstance(spec, attnbench.KernelSpec):
        scoring = [
            s for s in near if isinstance(s, attnbench.ScoringSpec) and s.name == spec.scoring
        ]
        return spec, scoring[0] if scoring else attnbench.get(spec.scoring)
    return spec, spec if isinstance(spec, attnbench.ScoringSpec) else None


def _is_distribution(source: str) -> bool:
    try:
        metadata.distribution(source)
    except (metadata.PackageNotFoundError, ValueError):
        return False
    return not source.endswith(".py")


def _name_of(spec: Any) -> str:
    kernel = isinstance(spec, attnbench.KernelSpec)
    return f"{spec.scoring}/{spec.name}" if kernel else str(spec.name)


def _attribute_of(row: dict[str, Any]) -> list[Any]:
    module = _module_of(row["source"])
    if not hasattr(module, row["attribute"]):
        raise LookupError(f"{row['source']} has no {row['attribute']}")
    value = getattr(module, row["attribute"])
    return list(value) if isinstance(value, Iterable) else [value]


def _module_of(source: str) -> Any:
    if source.endswith(".py"):
        path = Path(source).resolve()
        if not path.is_file():
            raise LookupError(f"there is no file {source}")
        sys.path.insert(0, str(path.parent))
        name = f"attnbench_file_{path.stem}"  # not a name that another module may have
        known = sys.modules.get(name)
        if known is not None and getattr(known, "__file__", None) == str(path):
            return known
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module
    sys.path.insert(0, os.getcwd())
    return importlib.import_module(source)


def inputs_of(path: Path, device: torch.device) -> tuple[dict[str, torch.Tensor], bool]:
    """The tensors of a file of inputs, and whether the call is causal."""
    with safe_open(path, framework="pt", device="cpu") as file:
        tensors = {name: file.get_tensor(name).to(device) for name in file.keys()}  # noqa: SIM118 -- it is no dict
        causal = (file.metadata() or {}).get("is_causal") == "true"
    return tensors, causal


def origin_of(spec: Any) -> str:
    """The file that contains a spec's code."""
    code = spec.attend if isinstance(spec, attnbench.KernelSpec) else spec.make
    with contextlib.suppress(TypeError):
        return str(Path(inspect.getfile(inspect.unwrap(code))).resolve())
    module = sys.modules.get(getattr(code, "__module__", ""), None)
    return str(Path(getattr(module, "__file__", "") or "").resolve())


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def fault_of(error: BaseException) -> dict[str, str]:
    """The answer to an order that raised."""
    return {"error": f"{type(error).__name__}: {first_line(error)}"}


def names_inside(root: str) -> dict[str, Any]:
    """The subjects whose code is in a folder, except layers, which this server cannot measure."""
    inside = []
    layer = getattr(attnbench, "LayerSpec", ())  # an older revision has none
    for name in attnbench.subjects():
        if "(" in name:
            continue
        with contextlib.suppress(Exception):
            spec = attnbench.get(name)
            if not isinstance(spec, layer) and Path(origin_of(spec)).is_relative_to(root):
                inside.append(name)
    return {"names": inside}


def names_in_attribute(row: dict[str, Any]) -> dict[str, Any]:
    """Names of the specs of a file's attribute, or the error that it raised."""
    try:
        return {"names": [_name_of(spec) for spec in _attribute_of(row)]}
    except (Exception, SystemExit) as error:
        return fault_of(error)
