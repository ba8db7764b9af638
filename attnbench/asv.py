"""The asv suite: one benchmark class a subject, for this repository and for any other.

A file ``benchmarks/attention.py`` is enough (not ``benchmarks/__init__.py``, where asv looks for
names only once it has imported everything)::

    from attnbench import asv

    asv.fill(globals())                           # every installed subject
    asv.fill(globals(), ["my_score", "scaled_dot"])  # or those named

asv keeps numbers by the name of a benchmark and the position of its parameters. So a class is named
for its subject, and :data:`CASES` and :data:`DEVICES` only ever grow at their ends: numbers stay
with their subject when plugins come and go. A subject, a device or a contract that an older commit
does not have gives ``n/a`` there.

Importing this module runs no tensor operation, so that ``asv run --launch-method=forkserver`` may
fork after it.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from attnbench.benchmark.tracking import TRACKED, VERSION, Tracked, prepare
from attnbench.cases.case import Case
from attnbench.errors import UsageError
from attnbench.subject.lookup import subjects as installed_names

__all__ = ["CASES", "DEVICES", "class_name", "fill"]

CASES = {
    "8x4 heads, L=S=64": Case((8, 4), 64, 64, 64, 64, 64),
    "4 heads, L=S=256, causal": Case((1, 4), 256, 256, 64, 64, 64, mask="causal"),
    "4x4 heads, L=1, S=1024": Case((4, 4), 1, 1024, 64, 64, 64),
}
"""Cases by name, in the order in which asv counts them: add at the end, never change one.

The names are short, since asv's page shows some 24 characters of one.
"""

DEVICES = ("cpu", "accelerator")
"""``accelerator`` is what ``torch.accelerator`` finds. The order is kept likewise."""

# what asv looks up in a benchmark's module: a class of that name would be taken for a setting
_ASV_NAMES = frozenset(
    (
        "setup",
        "teardown",
        "setup_cache",
        "timeout",
        "version",
        "params",
        "param_names",
        "skip_params",
        "number",
        "repeat",
        "rounds",
        "processes",
        "sample_time",
        "warmup_time",
        "min_run_count",
        "timer",
        "type",
        "unit",
    )
)


def class_name(address: str) -> str:
    """The class of a subject: ``additive__factorised``, ``multi_head__scoring_additive``."""
    name = re.sub(r"[/(]|, ", "__", address.removesuffix(")")).replace("=", "_")
    plain = re.sub(r"\W", "_", name)
    if plain != name or not plain[0].isalpha() or plain in _ASV_NAMES:
        # other characters all become "_": the sum keeps my-score and my.score apart
        plain = f"subject_{plain}_{zlib.crc32(address.encode()):08x}"
    return plain


def fill(namespace: MutableMapping[str, Any], subjects: Iterable[str] | None = None) -> None:
    """Put one benchmark class a subject into the namespace of a module.

    Args:
        namespace: the module's ``globals()``.
        subjects: addresses; every installed subject by default. One that is not installed gives
            ``n/a``.

    Raises:
        UsageError: two addresses make the same class name.
    """
    names: dict[str, str] = {}
    for address in installed_names() if subjects is None else subjects:
        name = class_name(address)
        if names.setdefault(name, address) != address:
            raise UsageError(
                f"{address!r} and {names[name]!r} would both be the benchmark class {name}; "
                "rename one, or fill() them into two modules."
            )
    module = str(namespace["__name__"])
    expected = _Expected(namespace.get("__file__"), module)
    for name, address in names.items():
        namespace[name] = _suite(name, address, module, expected)

    def absent(name: str) -> type:
        if name.startswith("_") or name not in expected.classes():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        return _suite(name, None, module, expected)

    namespace["__getattr__"] = absent


def _suite(name: str, address: str | None, module: str, expected: _Expected) -> type:
    """The class of a subject; of one that is not there if it has no address."""

    def setup(self: Any, case: str, device: str) -> None:
        if address is None:
            raise NotImplementedError(f"{name} is not installed at this commit")
        self.prepared = prepare(address, CASES[case], device)

    methods = {
        method: _benchmark(f"{name}.{method}", address or name, expected, tracked)
        for method, tracked in TRACKED.items()
    }
    content = {"setup": setup, "timeout": 300, "param_names": ["case", "device"], **methods}
    return type(name, (), {"__module__": module, "__doc__": address, **content})


def _benchmark(
    name: str, address: str, expected: _Expected, tracked: Tracked
) -> Callable[..., Any]:
    """A method ``track_*``."""

    def benchmark(self: Any, case: str, device: str) -> Any:
        return tracked.measure(self.prepared)

    def setup(case: str, device: str) -> None:
        wanted = expected.version(name)
        if wanted not in (None, VERSION):
            raise NotImplementedError(f"this commit measures as of {VERSION}, not of {wanted}")

    # asv reads these off the function, and writes the plain ones down in its benchmarks.json
    vars(benchmark).update(
        setup=setup,
        unit=tracked.unit,
        version=VERSION,
        rounds=tracked.processes,
        params=[list(CASES)[: None if tracked.every_case else 1], list(DEVICES)],
        subject=address,
        pretty_name=f"{address}: {tracked.title}",
    )
    benchmark.__name__ = name.rpartition(".")[2]
    return benchmark


class _Expected:
    """The benchmarks that the present run wants, as asv wrote them down before it.

    Args:
        file: of the module with the benchmarks.
        module: its name; asv's are relative to the folder ``benchmarks``.
    """

    def __init__(self, file: str | None, module: str) -> None:
        self._file = file
        self._prefix = module.partition(".")[2] + "."
        self._found: dict[str, str] | None = None

    def classes(self) -> set[str]:
        """Names of the classes."""
        return {name.partition(".")[0] for name in self._versions()}

    def version(self, name: str) -> str | None:
        """The version of a benchmark ``class.method``; ``None`` if it is not known."""
        return self._versions().get(name)

    def _versions(self) -> dict[str, str]:
        if self._found is None:
            prefix = self._prefix
            self._found = {
                name.removeprefix(prefix): str(row.get("version"))
                for name, row in _written_down(self._file).items()
                if name.startswith(prefix) and isinstance(row, dict)
            }
        return self._found


def _written_down(file: str | None) -> Mapping[str, Any]:
    """The content of asv's ``benchmarks.json``; empty where there is none."""
    folders = [Path(os.environ["ASV_CONF_DIR"])] if "ASV_CONF_DIR" in os.environ else []
    folders += Path(file).resolve().parents if file else []
    for folder in folders:
        conf = next(
            (p for n in ("asv.conf.json", "asv.conf.jsonc") if (p := folder / n).is_file()), None
        )
        if conf is None:
            continue
        # the file may have comments, which the standard library does not read
        named = re.search(r'^\s*"results_dir"\s*:\s*"([^"]+)"', conf.read_text("utf-8"), re.M)
        path = folder / (named[1] if named else "results") / "benchmarks.json"
        try:
            content = json.loads(path.read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return content if isinstance(content, dict) else {}
    return {}
