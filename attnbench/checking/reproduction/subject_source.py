"""Access of a script to a subject's code: by import, by file or as source text."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.checking.reproduction.source_lines import Unwritable
from attnbench.specs import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec

Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec


@dataclass(frozen=True)
class Named:
    """Source text for a part of a subject's code."""

    imports: tuple[str, ...]
    text: str


def named_make(spec: ScoringSpec | MechanismSpec | LayerSpec) -> Named:
    """The source text of a spec's ``make``.

    Raises:
        Unwritable: it can neither be imported nor written out.
    """
    return _named(spec, getattr(spec.make, "__wrapped__", spec.make), "make")


def named_reference(spec: ScoringSpec | MechanismSpec) -> Named:
    """The source text of a spec's ``reference`` in Python floats.

    Raises:
        Unwritable: it can neither be imported nor written out.
    """
    assert spec.reference is not None
    return _named(spec, spec.reference, "reference")


def named_attend(spec: KernelSpec) -> Named:
    """The source text of a kernel's ``attend``.

    Raises:
        Unwritable: it can neither be imported nor written out.
    """
    return _named(spec, spec.attend, "attend")


def named_cache(spec: LayerSpec, operation: str) -> Named:
    """The source text of a cache's operation: ``new``, ``select``, ``crop`` or ``length``.

    Raises:
        Unwritable: it can neither be imported nor written out.
    """
    return _named(spec, getattr(spec.cache, operation), f"cache.{operation}")


def _named(spec: Spec, function: Callable[..., Any], field: str) -> Named:
    module = sys.modules.get(getattr(function, "__module__", type(function).__module__))
    if module is None:
        raise Unwritable(f"{field} of {spec.name} comes from no module")
    if module.__name__ == "__main__":
        return _written_out(function)
    path, known_as = _imports(module), _importable_name(module)
    name = getattr(function, "__qualname__", "")
    if name.isidentifier() and getattr(module, name, None) is function:
        return Named((*path, f"from {known_as} import {name}"), name)
    imports = (*path, f"import {known_as}")
    for text, other in _specs(module):
        same: Any = other
        for part in field.split("."):
            same = getattr(same, part, None)
        if other is spec or getattr(same, "__wrapped__", same) is function:
            return Named(imports, f"{text.replace('@', known_as)}.{field}")
    return _written_out(function)


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
    private = module.__name__.startswith("attnbench_file_")
    return Path(file).stem if private and file else module.__name__


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
            found = value()
            for index, item in enumerate(found if isinstance(found, Iterable) else ()):
                if isinstance(item, kinds):
                    yield f"list(@.{name}())[{index}]", item


def _written_out(function: Callable[..., Any]) -> Named:
    """A class or function as its source text, which must depend on nothing but torch."""
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise Unwritable("a lambda or an object has no source text of its own")
    try:
        source = textwrap.dedent(inspect.getsource(function))
    except (OSError, TypeError):
        raise Unwritable(f"the source of {name} is not to be had") from None
    usual = ("import math", "from torch import Tensor, nn", "import torch.nn.functional as F")
    return Named((*usual, "", "", source.rstrip(), ""), name)
