"""Access of a script to a subject's code: by import, by file or as source text."""

from __future__ import annotations

import inspect
import re
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.calling.adapted import AdaptedSpec
from attnbench.specs import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec

Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


class Unwritable(Exception):  # noqa: N818 -- always caught
    """A value or a function that has no plain source text."""


@dataclass(frozen=True)
class Source:
    """Source text for a part of a subject's code."""

    imports: tuple[str, ...]
    text: str


def source_of(spec: Spec, field: str) -> Source:
    """The source text of a function in a spec.

    Args:
        spec: the spec.
        field: ``make``, ``reference``, ``attend``, or an operation of a cache, as ``cache.new``.

    Raises:
        Unwritable: the function can neither be imported nor written out.
    """
    function = attrgetter(field)(spec)
    function = getattr(function, "__wrapped__", function) if field == "make" else function
    if field == "make" and isinstance(spec, AdaptedSpec) and (made := _adapted(spec)):
        return made
    module = sys.modules.get(getattr(function, "__module__", type(function).__module__))
    if module is None:
        raise Unwritable(f"{field} of {spec.name} comes from no module")
    if module.__name__ == "__main__":
        return _full_source(function)
    imports, module_name = _imported(module)
    name = getattr(function, "__qualname__", "")
    if name.isidentifier() and getattr(module, name, None) is function:
        if module_name == _importable_name(module):
            return Source((*_imports(module), f"from {module_name} import {name}"), name)
        return Source(imports, f"{module_name}.{name}")
    for text, other in _specs(module):
        member: Any = other
        for part in field.split("."):
            member = getattr(member, part, None)
        if other is spec or getattr(member, "__wrapped__", member) is function:
            return Source(imports, f"{text.replace('@', module_name)}.{field}")
    return _full_source(function)


def _adapted(spec: AdaptedSpec) -> Source | None:
    """The source text of what an adapter made of a callee that can be imported."""
    name = getattr(spec.callee, "__name__", "")
    module = sys.modules.get(getattr(spec.callee, "__module__", ""))
    if module is None or getattr(module, name, None) is not spec.callee:
        return None
    imports, module_name = _imported(module)
    text = f"{spec.style}({module_name}.{name}).make"
    return Source((*imports, f"from attnbench.adapters import {spec.style}"), text)


def _imported(module: ModuleType) -> tuple[tuple[str, ...], str]:
    """The lines that import a module, and its name in the script."""
    name = _importable_name(module)
    if all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
        return (*_imports(module), f"import {name}"), name
    variable = re.sub(r"\W", "_", f"file_{name}")  # the name of its file is no name of Python's
    line = f"{variable} = importlib.import_module({name!r})"
    return (*_imports(module), "import importlib", line), variable


def _imports(module: ModuleType) -> tuple[str, ...]:
    """The lines by which a script finds a module that is not installed."""
    file = getattr(module, "__file__", None)
    installed = [sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")]
    if file is None or any(file.startswith(f"{folder}/") for folder in installed):
        return ()
    depth = module.__name__.count(".") + (Path(file).name == "__init__.py")
    folder = str(Path(file).resolve().parents[depth])
    if not getattr(module, "__name__", "").startswith(("attnbench.", "attnbench_plugins.")):
        return ("import sys", f"sys.path.insert(0, {folder!r})")
    return ()


def _importable_name(module: ModuleType) -> str:
    """The name by which a module can be imported if its folder is importable.

    A file that an address names is loaded under a name of its own.
    """
    file = getattr(module, "__file__", None)
    is_file_module = module.__name__.startswith("attnbench_file_")
    return Path(file).stem if is_file_module and file else module.__name__


def _specs(module: ModuleType) -> Iterator[tuple[str, Spec]]:
    """Yield the specs of a module or its hooks, with source text; ``@`` stands for the module."""
    kinds = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec
    for name, value in list(vars(module).items()):
        if isinstance(value, kinds):
            yield f"@.{name}", value
        elif isinstance(value, list | tuple | dict):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            for index, item in pairs:
                if isinstance(item, kinds):
                    yield f"@.{name}[{index!r}]", item
        elif name.startswith("attnbench_") and callable(value):
            result = value()
            for index, item in enumerate(result if isinstance(result, Iterable) else ()):
                if isinstance(item, kinds):
                    yield f"list(@.{name}())[{index}]", item


def _full_source(function: Callable[..., Any]) -> Source:
    """A class or function as its source text, which must depend on nothing but torch."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise Unwritable("a lambda or an object has no source text of its own")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Unwritable(f"the source of {name} is not available") from None
    imports = ("import math", "from torch import Tensor, nn", "import torch.nn.functional as F")
    return Source((*imports, "", "", source.rstrip(), ""), name)
