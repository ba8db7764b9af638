"""What somebody's code meets here: stubs of what is not installed, no GPU, and limits."""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import FrameType, ModuleType
from typing import Any, NoReturn

import torch
from torch.overrides import TorchFunctionMode

LIMIT_S = 20.0
"""Most seconds for a constructor."""

LIMIT_ELEMENTS = 2**28
"""Most numbers that a constructor may make."""

_loading = [False]


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """While a file is imported, its decorators and registries may call what is missing."""
    before, _loading[0] = _loading[0], True
    try:
        yield
    finally:
        _loading[0] = before


class Stubs(MetaPathFinder, Loader):
    """Gives a stub for each module of these names, and for what is inside it.

    Args:
        names: what is stubbed.
    """

    def __init__(self) -> None:
        self.names: list[str] = []

    def __enter__(self) -> Stubs:
        sys.meta_path.append(self)
        return self

    def __exit__(self, *raised: object) -> None:
        """Leave no stub for others to find: torch itself asks what is installed."""
        sys.meta_path.remove(self)
        for name in [name for name, found in sys.modules.items() if type(found) is _StubModule]:
            del sys.modules[name]

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a stub; ``None`` for other names."""
        is_inside = isinstance(sys.modules.get(name.rpartition(".")[0]), _StubModule)
        return ModuleSpec(name, self, is_package=True) if is_inside or name in self.names else None

    def find_distributions(self, context: Any) -> list[metadata.Distribution]:
        """What says the version of a stub."""
        return [_StubDistribution(context.name)] if context.name in self.names else []

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The stub."""
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing is run."""


def lacking(error: BaseException | None) -> str:
    """The first module that was missing, where that led to an exception; ``""`` otherwise."""
    missing = [each for each in causes(error) if isinstance(each, ModuleNotFoundError)]
    return next((each.name for each in reversed(missing) if each.name), "")


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and what led to it, the first cause last."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


_VERSION = "999.0.0"
"""Newer than any that the users of a stub ask for."""


class _StubDistribution(metadata.Distribution):
    """The metadata of a stub."""

    def __init__(self, name: str) -> None:
        self._text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {_VERSION}\n"

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return path


class _StubModule(ModuleType):
    """A module whose attributes raise when they are used."""

    def __init__(self, name: str) -> None:
        super().__init__(name, f"A stub: {name} is not installed.")
        self.__path__: list[str] = []
        self.__version__ = _VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        known = getattr(torch.nn.init, name, None) if name.endswith("_") else None
        return known or _NotInstalled(f"{self.__name__}.{name}")  # as timm's trunc_normal_


class _NotInstalled:
    """Anything of a module that is not installed: may be named, inherited from and annotated."""

    def __init__(self, name: str) -> None:
        self.__name__ = self.__qualname__ = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _NotInstalled(f"{self.__name__}.{name}")

    def __call__(self, *given: Any, **named: Any) -> Any:
        if not _loading[0]:
            self._raise()
        if len(given) == 1 and not named and isinstance(given[0], type | Callable):
            return given[0]  # as a decorator does
        return self

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        def refuse(*given: Any, **named: Any) -> None:
            self._raise()

        return (type("Missing", (), {"__init__": refuse}),)

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, subclass: type) -> bool:
        return False

    def __getitem__(self, item: Any) -> Any:
        return self

    def __iter__(self) -> Iterator[Any]:
        if not _loading[0]:
            self._raise()
        return iter(())  # by its items a loop over it would never end

    def __le__(self, other: Any) -> bool:
        return True  # its version is one that is wanted

    __lt__ = __ge__ = __gt__ = __le__

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def _raise(self) -> NoReturn:
        package = self.__name__.partition(".")[0]
        reason = (
            f"this {package} has no such module"
            if is_there(package)
            else f"{package} is not installed"
        )
        raise ModuleNotFoundError(f"{self.__name__} is used, and {reason}", name=package)


def is_there(name: str) -> bool:
    """Whether the package of a module that is missing is installed."""
    package = name.partition(".")[0]
    with contextlib.suppress(ImportError, ValueError):
        return importlib.util.find_spec(package) is not None
    return False


class OnCPU(TorchFunctionMode):
    """Lets what asks for a GPU be done on the CPU.

    Args:
        used: whether anything asked but the installed packages that are imported with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.used = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """The result of a function of torch, computed on the CPU."""
        if func is torch.Tensor.cuda:
            self.used = self.used or not _asked_by_package()
            return args[0]
        named = {name: self._moved(value) for name, value in (kwargs or {}).items()}
        return func(*map(self._moved, args), **named)

    def _moved(self, value: Any) -> Any:
        is_gpu = isinstance(value, torch.device) and value.type == "cuda"
        if is_gpu or (isinstance(value, str) and value.partition(":")[0] == "cuda"):
            self.used = self.used or not _asked_by_package()
            return torch.device("cpu")
        return value


def _asked_by_package() -> bool:
    """Whether the code that called torch is of an installed package, and not the file's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        frame = frame.f_back
    return frame is not None and "-packages" in frame.f_code.co_filename


_BETWEEN = ("attnbench", "torch")


class TooLargeError(Exception):
    """A constructor makes more numbers than a check can hold."""


class DownloadError(OSError):
    """A constructor opens a connection."""


class TooLongError(Exception):
    """Code took more seconds than its limit."""


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise in what takes longer, where signals can be used."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        yield
        return

    def late(*_: Any) -> None:
        raise TooLongError(f"it takes more than {seconds:.0f} s")

    kinds = (signal.ITIMER_PROF, signal.SIGPROF, 1), (signal.ITIMER_REAL, signal.SIGALRM, 3)
    before = [signal.signal(number, late) for _, number, _ in kinds]
    for timer, _, factor in kinds:  # a busy machine takes longer than the work does
        signal.setitimer(timer, factor * seconds)
    try:
        yield
    finally:
        for timer, _, _ in kinds:
            signal.setitimer(timer, 0)
        for (_, number, _), handler in zip(kinds, before, strict=True):
            signal.signal(number, handler)


class Bounded(OnCPU):
    """Ends a constructor that makes too much, and puts numbers where it leaves memory as it is."""

    count = 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = super().__torch_function__(func, types, args, kwargs)
        if func in _FACTORIES:
            self.count += result.numel()
            if self.count > LIMIT_ELEMENTS:
                raise TooLargeError(f"it makes more than {LIMIT_ELEMENTS:,} numbers")
        if func in _UNSET and result.is_floating_point():
            result.normal_(0.0, 0.1)
        return result


_UNSET = {torch.empty, torch.empty_like}
_FACTORIES = {*_UNSET, torch.zeros, torch.ones, torch.rand, torch.randn, torch.full}


@contextlib.contextmanager
def confined() -> Iterator[OnCPU]:
    """Without connections, for a limited time, on the CPU, and with limited memory."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise DownloadError("it opens a connection")

    before = socket.getaddrinfo
    socket.getaddrinfo = refuse
    try:
        with within(LIMIT_S), torch.random.fork_rng(devices=[]), Bounded() as mode:
            yield mode
    finally:
        socket.getaddrinfo = before
