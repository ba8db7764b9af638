"""Mistakes as textual changes of right sources: read, applied, and imported.

A file of rows has one mistake after another::

    scale_missing: attention | The scores are not scaled. | mlc-llm#3426, cntkx#10
    -        return query.shape[-1] ** -0.5 if given is None else given
    +        return 1.0 if given is None else given

After the name stand the right twin, the mistake in a sentence, and where it was seen; in
``odd.txt`` and ``conventions.txt``, which have what is right, invariants in its place. Then come
changes as in a diff, one from the next by ``@@``: what ``-`` and a space begin has to be in the
source of the twin's module exactly once, and becomes what a space and ``+`` begin. The changed
source is the module ``attnbench_zoo.bugs.scale_missing``, whose spec is its ``SPEC``; what
:mod:`attnbench_zoo.faulty` and :mod:`attnbench_zoo.wrong_gradients` hold is known in it.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import linecache
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.resources import files
from types import CodeType, ModuleType
from typing import Any, NamedTuple

import attnbench
from attnbench import KernelSpec, LayerSpec, MechanismSpec, ScoringSpec
from attnbench_zoo import faulty, wrong_gradients
from attnbench_zoo.right import (
    attention,
    crossed,
    heads,
    in_order,
    layers,
    linear,
    packing,
    paths,
    positions,
    storage,
    stores,
    streaming,
)

Spec = ScoringSpec | KernelSpec | MechanismSpec | LayerSpec

PACKAGE = "attnbench_zoo.bugs"
_HEAD = re.compile(r"^(\w+): (\w+) \| (.+\.) \| (.+)$", re.MULTILINE)
_SOURCES = (
    positions,
    attention,
    heads,
    layers,
    linear,
    crossed,
    paths,
    streaming,
    storage,
    in_order,
    packing,
)
_SCORINGS = ("additive", "bilinear", "gaussian", "scaled_dot", "vector_sum")
_WITH_LAWS = (
    "concat_combine",
    "forced_forward",
    "hard",
    "key_value",
    "local_monotonic",
    "local_predictive",
    "self_tanh",
    "static",
    "structured_self",
)
"""Built-ins whose laws forbid the mistakes; no reference of theirs is to see them first."""
_BASES = {positions.__name__: attention.__name__, layers.__name__: stores.__name__}
"""What stands in the place of the import of it, since a row may change both."""


class Place(NamedTuple):
    """Where a right twin is: its module, its name or that of what makes it there, and itself."""

    module: ModuleType
    name: str
    spec: Spec


def _built_in(name: str, **changes: Any) -> Place:
    """A built-in subject, and what makes it in its module."""
    spec: Any = attnbench.get(name)
    made = inspect.unwrap(spec.make)
    module = importlib.import_module(made.__module__)
    return Place(module, made.__name__, replace(spec, **changes))


TWINS = {
    spec.name: Place(module, name, spec)
    for module in _SOURCES
    for name, spec in vars(module).items()
    if isinstance(spec, Spec)
}
TWINS |= {name: _built_in(name) for name in _SCORINGS}
TWINS |= {name: _built_in(name, reference=None, variants=()) for name in _WITH_LAWS}
"""By name, what can be changed."""


@dataclass(frozen=True)
class Row:
    """One mistake.

    Args:
        name: of it.
        topic: the file that it stands in.
        twin: the name of the right twin.
        mistake: in one sentence.
        bugs: where it was seen, ``project#number``; ``("own",)`` for one that no issue tells of.
        changes: old and new text of each change.
    """

    name: str
    topic: str
    twin: str
    mistake: str
    bugs: tuple[str, ...]
    changes: tuple[tuple[str, str], ...]


class Patched(NamedTuple):
    """A changed source, and the number of its first line that differs."""

    text: str
    line: int


@functools.cache
def rows() -> dict[str, Row]:
    """Every row, by name; those of the blind part have the topic ``blind``."""
    folder = files(PACKAGE)
    found: dict[str, Row] = {}
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        topic, _, ending = file.name.rpartition(".")
        for row in _read(file.read_text("utf-8"), topic) if ending == "txt" else ():
            if row.name in found:
                raise ValueError(f"{file.name}: {row.name} is in {found[row.name].topic}, too.")
            found[row.name] = row
    return found


def _read(text: str, topic: str) -> Iterator[Row]:
    heads = [*_HEAD.finditer(text)]
    for head, end in zip(heads, [*(next_.start() for next_ in heads[1:]), len(text)], strict=True):
        name, twin, mistake, bugs = head.groups()
        body = text[head.end() : end].strip("\n")
        changes = tuple(_change(part.split("\n")) for part in body.split("\n@@\n"))
        yield Row(name, topic, twin, mistake, tuple(bugs.split(", ")), changes)


def _change(lines: Sequence[str]) -> tuple[str, str]:
    old, new = ([x[1:] for x in lines if x[:1] in ("", " ", sign)] for sign in "-+")
    return "".join(f"{x}\n" for x in old), "".join(f"{x}\n" for x in new)


def apply(row: Row, source: str) -> Patched:
    """The source with the changes of a row.

    Raises:
        ValueError: what a change begins with is not in the source exactly once.
    """
    text = f"\n{source}"
    for old, new in row.changes:
        count = text.count(f"\n{old}")
        if count != 1:
            raise ValueError(
                f"{row.topic}.txt: {row.name}: this is {count} times in the source of "
                f"{row.twin}, but should be once:\n{old.rstrip()}"
            )
        text = text.replace(f"\n{old}", f"\n{new}")
    text = text[1:]
    pairs = enumerate(zip(text.split("\n"), source.split("\n"), strict=False), 1)
    return Patched(text, next(number for number, (one, other) in pairs if one != other))


class Finder(MetaPathFinder, InspectLoader):
    """Imports the changed source of a row as ``attnbench_zoo.bugs.<name>``."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec, if there is a row of this name."""
        package, _, name = fullname.rpartition(".")
        if package != PACKAGE or name not in rows():
            return None
        return ModuleSpec(fullname, self, origin=_file(name))

    def get_source(self, fullname: str) -> str:
        """The changed source."""
        row = rows()[fullname.rpartition(".")[2]]
        return apply(row, source_of(row)).text

    def get_code(self, fullname: str) -> CodeType:
        """The code of the changed source, whose lines tracebacks show."""
        text, file = self.get_source(fullname), _file(fullname.rpartition(".")[2])
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        return compile(text, file, "exec")

    def exec_module(self, module: ModuleType) -> None:
        """Run it, with what rows may use."""
        for known in (faulty, wrong_gradients):
            public = {name: value for name, value in vars(known).items() if name[0] != "_"}
            module.__dict__.update(public)
        module.__file__ = module.__spec__.origin if module.__spec__ else None
        super().exec_module(module)
        row = rows()[module.__name__.rpartition(".")[2]]
        place = TWINS[row.twin]
        made = getattr(module, place.name)
        spec: Any = made if isinstance(made, Spec) else replace(place.spec, make=made)
        module.SPEC = replace(spec, name=row.name)  # type: ignore[attr-defined]


def _file(name: str) -> str:
    return str(files(PACKAGE).joinpath(f"{name}.py"))


@functools.cache
def _source(module: str) -> str:
    package, _, name = module.rpartition(".")
    text = files(package).joinpath(f"{name}.py").read_text("utf-8")
    if (base := _BASES.get(module)) is None:
        return text
    own = _source(base).replace("from __future__ import annotations\n", "")
    return re.sub(rf"^from {base} import .+\n", lambda _: own, text, flags=re.MULTILINE)


def source_of(row: Row) -> str:
    """What a row changes: the source of its twin's module, with what that goes on from."""
    return _source(TWINS[row.twin].module.__name__)


def edited(row: Row) -> tuple[str, int]:
    """File and line of the change of a row, as a traceback names them."""
    changed = apply(row, source_of(row))
    return _file(row.name), changed.line


def patched(row: Row) -> Spec:
    """The spec of a row, ``attnbench_zoo.bugs.<name>:SPEC``."""
    spec: Spec = importlib.import_module(f"{PACKAGE}.{row.name}").SPEC
    return spec
