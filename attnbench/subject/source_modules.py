"""The modules of addresses that name a file or a module, imported without displacing others."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import sysconfig
import traceback
import zlib
from pathlib import Path
from types import ModuleType

from attnbench.errors import AddressError, AttnbenchError, UnknownNameError
from attnbench.registry.address import Address


def import_module(address: Address) -> ModuleType:
    """Import the module of an address; the working directory is importable.

    Raises:
        UnknownNameError: there is no such module.
        AttnbenchError: it raised; the message says where.
    """
    name = str(address.source)
    _make_importable(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _failed(str(address), error) from error
        raise UnknownNameError(
            f"{address}: there is neither a distribution nor a module {name!r}; "
            "a file is addressed as path/to/file.py:ATTRIBUTE."
        ) from None
    except (Exception, SystemExit) as error:
        raise _failed(str(address), error) from error


def load_file(address: Address) -> ModuleType:
    """Load the file of an address once, as a module of a name of its own; its folder is importable.

    Under its own name, a file ``profile.py`` would stand for the standard library's module.

    Raises:
        AddressError: there is no such file, or it raised; the message says where.
    """
    path = Path(str(address.source)).resolve()
    if not path.is_file():
        raise AddressError(f"there is no file {address.source!r} (looked at {path}).")
    _make_importable(path.parent)
    name = f"attnbench_file_{zlib.crc32(str(path).encode()):08x}_{path.stem}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # so that its objects can be pickled
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if isinstance(error, Exception | SystemExit):
            raise _failed(str(address.source), error) from error
        raise
    return module


def _make_importable(folder: Path) -> None:
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


def _failed(what: str, error: BaseException) -> AttnbenchError:
    """Convert an exception raised by an import to one error with its location."""
    if isinstance(error, AttnbenchError):
        return error
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
    else:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        file, line = frame.filename, frame.lineno
    return AddressError(
        f"{what} cannot be imported: {type(error).__name__}: {error}\n  at {file}:{line}"
    )
