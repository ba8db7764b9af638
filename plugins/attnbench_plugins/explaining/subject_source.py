"""Access of a script to a subject's code: by import, or as source text."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from keyword import iskeyword
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

from attnbench.testing import AdaptedSpec


class Unwritable(Exception):  # noqa: N818 -- always caught
    """A value or a function that has no plain source text."""


@dataclass(frozen=True)
class Source:
    """Source text for a part of a subject's code."""

    imports: tuple[str, ...]
    text: str


def source_of(spec: Any, field: str) -> Source:
    """The source text of a function in a spec.

    Args:
        spec: the spec.
        field: ``make``, ``attend``, or an operation of a cache, as ``cache.new``.

    Raises:
        Unwritable: the function can neither be imported nor written out.
    """
    function = attrgetter(field)(spec)
    function = getattr(function, "__wrapped__", function) if field == "make" else function
    if field == "make" and isinstance(spec, AdaptedSpec):
        home = sys.modules.get(getattr(spec.callee, "__module__", ""))
        name = getattr(spec.callee, "__name__", "")
        if home is not None and getattr(home, name, None) is spec.callee:
            imports, variable = _imported(home)
            adapter = f"from attnbench.adapters import {spec.style}"
            return Source((*imports, adapter), f"{spec.style}({variable}.{name}).make")
    module = sys.modules.get(getattr(function, "__module__", type(function).__module__))
    if module is None or module.__name__ == "__main__":
        return _full_source(function)
    imports, variable = _imported(module)
    name = getattr(function, "__qualname__", "")
    if name.isidentifier() and getattr(module, name, None) is function:
        return Source(imports, f"{variable}.{name}")
    for text, other in _values(module):
        if other is spec:
            return Source(imports, f"{variable}.{text}.{field}")
    return _full_source(function)


def _imported(module: ModuleType) -> tuple[tuple[str, ...], str]:
    """The lines that import a module, and its name in the script.

    A file that an address names is loaded under a name of its own, and imported by its own name.
    """
    name, file = module.__name__, getattr(module, "__file__", None)
    lines: tuple[str, ...] = ()
    installed = [sysconfig.get_path(each) for each in ("purelib", "platlib", "stdlib")]
    own = name.startswith(("attnbench.", "attnbench_plugins."))
    if file is not None and not own and not any(file.startswith(f"{f}/") for f in installed):
        depth = name.count(".") + (Path(file).name == "__init__.py")
        lines = ("import sys", f"sys.path.insert(0, {str(Path(file).resolve().parents[depth])!r})")
    if name.startswith("attnbench_file_") and file:
        name = Path(file).stem
    if not all(part.isidentifier() and not iskeyword(part) for part in name.split(".")):
        raise Unwritable(f"{name}, the name of a file, is no name of Python's")
    return (*lines, f"import {name}"), name


def _values(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What a module holds, by how it is reached in it."""
    for name, value in list(vars(module).items()):
        yield name, value
        if isinstance(value, list | tuple | dict):
            for index, item in value.items() if isinstance(value, dict) else enumerate(value):
                yield f"{name}[{index!r}]", item


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
    return Source((*imports, source.rstrip()), name)
