"""The import of somebody's file or module as pytest does it, and what looks like attention in it.

A file in a package is imported under its package's name, with the folder above the topmost
``__init__.py`` and the current folder on the path. Any other file is loaded under a name of its
own, so that ``profile.py`` does not stand for the standard library's module.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import inspect
import io
import os
import re
import sys
import sysconfig
import traceback
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from attnbench.calling.refusals import in_one_line
from attnbench.calling.roles import TENSORS, role_of
from attnbench.calling.sandbox import (
    OnCPU,
    Stubs,
    TooLongError,
    is_there,
    lacking,
    loading,
    within,
)
from attnbench.errors import AddressError, AttnbenchError, UnknownNameError

LIMIT_S = 20.0
"""Most seconds for the import of a file."""

_OWN = "attnbench_file_"
_NOTES: dict[str, list[str]] = {}


def load(source: str) -> ModuleType:
    """Import a file, whose path ends in ``.py``, or a module by its name.

    What was done so that it could be imported is told by :func:`notes_of`. A third-party module
    that is not installed is stubbed: what it brings raises when it is used.

    Raises:
        UnknownNameError: there is no such module.
        AddressError: there is no such file, or it raised; the message says where.
    """
    make_importable(Path.cwd())
    if not source.endswith(".py"):
        return _imported(source, source, lambda: importlib.import_module(source))
    path = Path(source).resolve()
    if not path.is_file():
        raise AddressError(f"there is no file {source!r} (looked at {path}).")
    package, top = _package_of(path)
    is_below = path.is_relative_to(Path.cwd())  # what is beside it counts last then
    if package and "-" not in package and all(map(str.isidentifier, package.split("."))):
        make_importable(top)
        if not is_below and not (path.parent / "__init__.py").exists():
            make_importable(path.parent)
        return _imported(source, package, lambda: _import_from(package, path))
    if not is_below:
        make_importable(path.parent)
    name = f"{_OWN}{zlib.crc32(str(path).encode()):08x}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    return _imported(source, name, lambda: _run(name, path))


def notes_of(module: ModuleType) -> tuple[str, ...]:
    """What was done to import a module: stubs, calls moved from a GPU, lines that were left out."""
    return tuple(_NOTES.get(module.__name__, ()))


def make_importable(folder: Path) -> None:
    """Put a folder on the path, behind the standard library and before what is installed."""
    if str(folder) in sys.path:
        return
    standard = sysconfig.get_path("stdlib")
    places = [
        number + 1
        for number, entry in enumerate(sys.path)
        if entry.startswith(standard) and not entry.endswith("-packages")
    ]
    sys.path.insert(max(places, default=0), str(folder))


_DOTS = re.compile(r"^\s*from\s+(\.+)\s*[\w.]*\s+import\b", re.MULTILINE)
"""The dots of imports from the file's own package."""


def _package_of(path: Path) -> tuple[str, Path]:
    """The dotted name of a file in a package, ``""`` outside, and the folder above the package.

    A folder is one, too, where the file imports by dots that count it in.
    """
    parts, top = [path.stem] if path.stem != "__init__" else [], path.parent
    dots = _DOTS.findall(path.read_text("utf-8", errors="replace"))
    named = [path.parents[place] for place in range(max(map(len, dots), default=0))]
    while ((top / "__init__.py").exists() or top in named) and top != top.parent:
        parts.insert(0, top.name)
        top = top.parent
    return (".".join(parts) if top != path.parent else ""), top


def _import_from(name: str, path: Path) -> ModuleType:
    """The module of a file in a package; where the package cannot be imported, the file alone."""
    try:
        with within(2 * LIMIT_S):
            module = importlib.import_module(name)
    except (AttnbenchError, TooLongError):
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        if lacking(error) or any(Path(frame.filename).resolve() == path for frame in frames):
            raise
        for end in range(1, name.count(".") + 1):  # packages whose __init__ is not run
            whole = ".".join(name.split(".")[:end])
            if whole not in sys.modules:
                sys.modules[whole] = package = ModuleType(whole)
                package.__path__ = [str(path.parents[name.count(".") - end])]
        try:
            module = importlib.import_module(name)
        except (Exception, SystemExit) as alone:
            raise alone if lacking(alone) else error from None
        _NOTES.setdefault(name, []).append(
            f"its package was not run, which raises {in_one_line(error, 100)}"
        )
    if Path(str(module.__file__)).resolve() != path:
        raise AddressError(
            f"{path} is {name}, but {name} was imported from {module.__file__}: "
            "check the two in runs of their own."
        )
    return module


_DEFINES = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.AnnAssign)


def _run(name: str, path: Path) -> ModuleType:
    """Run a file as the module of a name; only its definitions where the whole cannot be run."""
    module = ModuleType(name)
    module.__file__ = str(path)
    module.__spec__ = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = module  # so that its objects can be pickled
    tree = ast.parse(path.read_bytes(), str(path))
    try:
        with within(LIMIT_S):
            _execute(tree, module)
        return module
    except (Exception, SystemExit) as error:
        frame = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        if lacking(error) or not frame or not _run_definitions(tree, module, error):
            raise
        _NOTES.setdefault(name, []).append(
            f"only the definitions of {path.name} were run, whose line {frame[-1].lineno} raises "
            f"{in_one_line(error, 100)}"
        )
    return module


def _execute(tree: ast.Module, module: ModuleType) -> None:
    """Run the user's file, as an import does."""
    code = compile(tree, str(module.__file__), "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102  what an import does


def _run_definitions(tree: ast.Module, module: ModuleType, error: BaseException) -> bool:
    """Run what a script defines, without its statements; whether these alone were to blame."""
    file = str(module.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    lines = {frame.lineno or 0 for frame in frames if frame.filename == file}
    kept = []
    for node in tree.body:
        if not any(node.lineno <= line <= (node.end_lineno or 0) for line in lines):
            kept += [node] if isinstance(node, (*_DEFINES, ast.Assign, ast.If, ast.Try)) else []
        elif isinstance(node, _DEFINES):
            return False
    for node in kept:
        with contextlib.suppress(Exception, SystemExit), within(LIMIT_S / 4):
            _execute(ast.Module([node], []), module)
    return True


def _imported(source: str, name: str, run: Callable[[], ModuleType]) -> ModuleType:
    """The module that ``run`` gives, with stubs for what is missing and the GPU's work on the CPU.

    Args:
        source: what to call it in an error.
        name: its name.
        run: imports it.
    """
    module, stubbed, asks_for_gpu = _run_again(source, name, run)
    for one in [*sys.modules.values()]:
        try:
            getattr(one, "__file__", None)  # which inspect asks of every module
        except Exception:  # one that is loaded when it is used, and cannot be
            vars(one)["__file__"] = None
    notes = _NOTES.setdefault(module.__name__, [])
    for reason, is_of_package in (("not installed", False), ("not in its package", True)):
        names = sorted({name for name in stubbed if is_there(name) == is_of_package})
        if names:
            notes.append(f"{reason}, and stubbed: {', '.join(names)}")
    forgotten = _give_forgotten(module)
    if forgotten:
        notes.append(f"it uses {', '.join(forgotten)} without importing it, which was done for it")
    if settings := _give_settings(module):
        notes.append(f"as where the file is run: {', '.join(settings)}")
    if asks_for_gpu:
        notes.append("what its import asks of a GPU was done on the CPU")
    return module


def _run_again(
    source: str, name: str, run: Callable[[], ModuleType]
) -> tuple[ModuleType, list[str], bool]:
    """The module, what was stubbed for it, and whether it asks for a GPU.

    Code that is not ready for what is missing runs again with a stub of it.
    """
    before, stubs = {*sys.modules}, Stubs()
    while True:
        try:
            with _quiet(), OnCPU() as gpu, stubs:
                return run(), stubs.names, gpu.used
        except BaseException as error:
            folder = Path(source).resolve().parent
            _forget(before, Path.cwd(), folder)
            missing = lacking(error)
            if missing and _is_beside(source, missing) and str(folder) not in sys.path:
                make_importable(folder)  # where the file is run, it is the first
                continue
            if missing and f"{name}.".startswith(f"{missing}."):
                raise UnknownNameError(
                    f"{source}: there is neither a distribution nor a module {name!r}; "
                    "a file is addressed as path/to/file.py:ATTRIBUTE."
                ) from None
            if not isinstance(error, Exception | SystemExit):
                raise
            if not missing or missing in stubs.names:
                raise _failed(source, error, stubs.names) from error
            stubs.names.append(missing)


def _is_beside(source: str, name: str) -> bool:
    """Whether a module of this name lies beside a file."""
    place = Path(source).with_name(name.partition(".")[0])
    return source.endswith(".py") and (place.is_dir() or place.with_suffix(".py").is_file())


_USUAL = {
    **{name: name for name in ("copy", "functools", "itertools", "math", "random", "torch")},
    "np": "numpy",
    "nn": "torch.nn",
    "F": "torch.nn.functional",
}
"""Names that files use without importing them, and what they mean."""


def _give_forgotten(module: ModuleType) -> list[str]:
    """Import what the code of a module uses by a usual name and never imports; their names."""
    space = vars(module)
    source = _source(module) if space.get("__file__") else ""
    nodes = [*ast.walk(ast.parse(source))]
    names = [node for node in nodes if isinstance(node, ast.Name)]
    used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    bound = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    bound |= {node.asname or node.name for node in nodes if isinstance(node, ast.alias)}
    given = sorted(name for name in used & {*_USUAL} if name not in bound and name not in space)
    space.update({name: importlib.import_module(_USUAL[name]) for name in given})
    return given


def _give_settings(module: ModuleType) -> list[str]:
    """Set the numbers that a script sets only where it is run; the assignments."""
    space, given = vars(module), []
    body = ast.parse(_source(module)).body if space.get("__file__") else []
    blocks = [node for node in body if isinstance(node, ast.If)]
    main = [block for block in blocks if "__main__" in ast.unparse(block.test)]
    for node in (node for block in main for node in block.body):
        match node:
            case ast.Assign(targets, ast.Constant(int() | float() as value)):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                free = [name for name in names if name not in space]
                space.update(dict.fromkeys(free, value))
                given += [f"{name}={value}" for name in free]
    return given


def _forget(before: set[str], *folders: Path) -> None:
    """Forget the modules of these folders that were imported since: they are run again whole."""
    for name in {*sys.modules} - before:
        module, file = sys.modules[name], str(folders[0])
        with contextlib.suppress(Exception):  # of a package that went before it, or not loaded yet
            paths = getattr(module, "__path__", ())  # one that was not run has no file
            file = getattr(module, "__file__", None) or next(iter(paths), "")
        if any(Path(file).is_relative_to(folder) for folder in folders) or name.startswith(_OWN):
            del sys.modules[name]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without the file's output, the command's arguments, a window, or defaults that stay."""
    argv, device, dtype = sys.argv, torch.get_default_device(), torch.get_default_dtype()
    hushed = io.StringIO()
    sys.argv = sys.argv[:1]
    os.environ.setdefault("MPLBACKEND", "Agg")
    try:
        with contextlib.redirect_stdout(hushed), contextlib.redirect_stderr(hushed), loading():
            yield
    finally:
        sys.argv = argv
        torch.set_default_dtype(dtype)
        if torch.get_default_device() != device:
            torch.set_default_device(device)


def _failed(what: str, error: BaseException, stubbed: Sequence[str] = ()) -> AttnbenchError:
    """Convert an exception raised by an import to one error with its location."""
    if isinstance(error, AttnbenchError):
        return error
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frames = traceback.extract_tb(error.__traceback__)
        here = [frame for frame in frames if Path(frame.filename).is_relative_to(Path.cwd())]
        file, line = (here or frames)[-1].filename, (here or frames)[-1].lineno
    missing = sorted(name for name in stubbed if not is_there(name))
    said = f"\n  not installed, and stubbed: {', '.join(missing)}" if missing else ""
    return AddressError(
        f"{what} cannot be imported: {type(error).__name__}: {error}\n  at {file}:{line}{said}"
    )


_NAME = re.compile(r"attn|attent|attend", re.IGNORECASE)
_FUSED = re.compile(r"scaled_dot_product|multi_head_attention_forward|flash_attn")
_PRODUCT = re.compile(r"matmul|bmm|einsum|[\w)\]] ?@ ?[\w(]")


def candidates(module: ModuleType) -> dict[str, Any]:
    """Every class and function that a module defines and that looks like attention, in order."""
    return {
        name: value
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__
        and getattr(value, "__name__", None) == name
        and (is_attention(value) if inspect.isclass(value) else _is_function(value))
    }


def is_attention(cls: type) -> bool:
    """Whether a class is a module that looks like attention, by its name or by what it computes."""
    forward = getattr(cls, "forward", nn.Module.forward)
    if not issubclass(cls, nn.Module) or inspect.isabstract(cls) or forward is nn.Module.forward:
        return False
    takes = [role_of(name, "forward") for name in inspect.signature(forward).parameters]
    if _NAME.search(cls.__name__):
        return len(takes) > 1
    return bool({*TENSORS} & {*takes}) and (computes_attention(forward) or _holds_attention(cls))


def _holds_attention(cls: type) -> bool:
    made = _source(vars(cls).get("__init__"))
    return bool(re.search(r"self\.\w*(attn|attention)\w* = ", made, re.IGNORECASE))


def computes_attention(value: Any) -> bool:
    """Whether a function has a softmax of products, or calls fused attention, in its source."""
    text = _source(value)
    return bool(_FUSED.search(text)) or ("softmax" in text and len(_PRODUCT.findall(text)) > 1)


def _is_function(value: Any) -> bool:
    if not isinstance(value, types.FunctionType):
        return False
    takes = [role_of(name, "forward") for name in inspect.signature(value).parameters]
    looks = _NAME.search(value.__name__) or computes_attention(value)
    return bool(looks) and len({"query", "key", "value", "memory"} & {*takes}) >= 2


def _source(value: Any) -> str:
    try:
        return inspect.getsource(value)
    except (OSError, TypeError):
        return ""
