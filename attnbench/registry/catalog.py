"""The registry: the specs of all plugins that loaded, looked up by name."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from packaging.utils import canonicalize_name

from attnbench._signing import ORIGIN
from attnbench.errors import DuplicateNameError, SpecError, UnknownNameError, nearest
from attnbench.registry.address import Address, parse_address
from attnbench.registry.discovery import (
    DISABLED_VARIABLE,
    AnySpec,
    Plugin,
    Spec,
    discover,
    load_plugin,
)
from attnbench.specs import Format, Invariant, KernelSpec, ScoringSpec, Style

_OTHERS = (Invariant, Format, Style)
"""The kinds of specs that are no subjects; each has names of its own."""

_Other = TypeVar("_Other", Invariant, Format, Style)

BUILT_IN = "attnbench"
"""The distribution whose names keep their meaning, whatever else is installed."""


@dataclass(frozen=True)
class Entry:
    """A spec and the plugin that registers it."""

    spec: AnySpec
    plugin: Plugin

    @property
    def key(self) -> str:
        """The bare address: a kernel's is ``scoring/kernel``."""
        return spec_key(self.spec)


def spec_key(spec: AnySpec) -> str:
    """The bare address of a spec, without its distribution."""
    return f"{spec.scoring}/{spec.name}" if isinstance(spec, KernelSpec) else spec.name


class Registry:
    """The specs of all plugins that loaded, by name.

    Args:
        plugins: loaded, failed and blocked plugins. A plugin whose specs name an unknown law or
            invariant becomes a failed one here, where all names are known.
    """

    def __init__(self, plugins: Iterable[Plugin]) -> None:
        plugins = list(plugins)
        invariants = {spec.name for p in plugins for spec in p.specs if isinstance(spec, Invariant)}
        self.invariant_names = frozenset(invariants)
        scorings = {spec.name for p in plugins for spec in p.specs if isinstance(spec, ScoringSpec)}
        self.scoring_names = frozenset(scorings)
        absent = [p for p in plugins if p.status in ("blocked", "failed")]
        self.plugins = [self._validate_plugin(plugin, absent) for plugin in plugins]
        self._by_key: dict[str, list[Entry]] = {}
        self._others: dict[type, dict[str, list[Entry]]] = {kind: {} for kind in _OTHERS}
        for plugin in self.plugins:
            for spec in plugin.specs:
                table = self._others.get(type(spec), self._by_key)
                entry = Entry(spec, plugin)
                table.setdefault(entry.key, []).append(entry)

    def _validate_plugin(self, plugin: Plugin, absent: list[Plugin]) -> Plugin:
        # an absent plugin may register a name if it is built in, a sibling or a requirement
        visible = {canonicalize_name(plugin.distribution), "attnbench", *plugin.requires}
        excused = any(canonicalize_name(other.distribution) in visible for other in absent)
        try:
            for spec in plugin.specs:
                if not isinstance(spec, _OTHERS):
                    self.validate(spec, excused=excused)
        except SpecError as error:
            return plugin.failed(error)
        return plugin

    def validate(self, spec: Spec, *, excused: bool = False) -> None:
        """Check the names in ``laws`` and ``exempt``, and the scoring function of a kernel.

        Args:
            excused: accept unknown names, since the plugin that registers them may be absent.

        Raises:
            SpecError: a name is unknown, or an exemption has no reason.
        """
        known = self.invariant_names
        laws = () if isinstance(spec, KernelSpec) else spec.laws
        where = spec_key(spec)
        if isinstance(spec, KernelSpec) and spec.scoring not in self.scoring_names and not excused:
            raise SpecError(_no_scoring_text(spec, self.scoring_names))
        for role, names in (("law", laws), ("exemption", tuple(spec.exempt))):
            for name in names:
                if name not in known and not excused:
                    raise SpecError(
                        f"{where} names the {role} {name!r}, which no plugin registers. "
                        f"{nearest(name, known)}"
                    )
        for name, reason in spec.exempt.items():
            if not isinstance(reason, str) or not reason.strip():
                raise SpecError(
                    f"{where} is exempt from {name!r} without a reason; write "
                    f"exempt={{{name!r}: 'why it does not hold'}}."
                )

    @property
    def shadowed(self) -> list[str]:
        """A sentence for each spec that is shadowed by a built-in one of the same name."""
        return [
            f"{entry.plugin.distribution} {entry.plugin.version} (entry point "
            f"{entry.plugin.name!r}) registers {key!r}, which is built in: the name means the "
            f"built-in one. {_remedy(entry)}"
            for table in (self._by_key, *self._others.values())
            for key, entries in table.items()
            if any(other.plugin.distribution == BUILT_IN for other in entries)
            for entry in entries
            if entry.plugin.distribution != BUILT_IN
        ]

    @property
    def failures(self) -> list[Plugin]:
        """The plugins that failed."""
        return [plugin for plugin in self.plugins if plugin.status == "failed"]

    def get(self, name: str | Address) -> Spec:
        """Look up a spec by the name, kernel and distribution of an address.

        Raises:
            UnknownNameError: no loaded plugin registers it.
            DuplicateNameError: more than one does, and none of them is built in.
        """
        address = parse_address(name) if isinstance(name, str) else name
        key = address.key
        entries = self._by_key.get(key, [])
        if address.source is not None:
            source = canonicalize_name(address.source)
            entries = [r for r in entries if canonicalize_name(r.plugin.distribution) == source]
        if not entries:
            raise UnknownNameError(
                self._unknown_text(f"{address.source}:{key}" if address.source else key)
            )
        spec = _resolve(key, entries).spec
        assert not isinstance(spec, _OTHERS)
        return spec

    def _unknown_text(self, name: str) -> str:
        text = f"no scoring function, kernel, mechanism or layer is called {name!r}. "
        text += nearest(name, self._by_key)
        absent = [p for p in self.plugins if p.status in ("blocked", "failed")]
        if absent:
            names = ", ".join(f"{p.name} ({p.status})" for p in absent)
            text += f"\nNot loaded: {names}; 'attnbench list --plugins --load' says why."
        return text

    def specs(self) -> list[tuple[Address, Spec, Plugin]]:
        """Address, spec and plugin of each subject, sorted.

        Where several share a name, the address of each but the built-in one names its distribution.
        """
        rows: list[tuple[Address, Spec, Plugin]] = []
        for key, entries in self._by_key.items():
            name, _, kernel = key.partition("/")
            for entry in entries:
                assert not isinstance(entry.spec, _OTHERS)
                is_bare = len(entries) == 1 or entry.plugin.distribution == BUILT_IN
                source = None if is_bare else entry.plugin.distribution
                rows.append((Address(name, kernel or None, source), entry.spec, entry.plugin))
        return sorted(rows, key=lambda row: str(row[0]))

    def scoring_for(self, kernel: KernelSpec) -> ScoringSpec:
        """The scoring function of a kernel; among several, that of the kernel's distribution.

        Raises:
            UnknownNameError: there is none.
            DuplicateNameError: there are several, none built in, and not one in that distribution.
        """
        entries = [
            r for r in self._by_key.get(kernel.scoring, []) if isinstance(r.spec, ScoringSpec)
        ]
        if not entries:
            raise UnknownNameError(_no_scoring_text(kernel, self.scoring_names))
        if len(entries) > 1:
            kernels = self._by_key.get(spec_key(kernel), [])
            distributions = {r.plugin.distribution for r in kernels if r.spec is kernel}
            siblings = [r for r in entries if r.plugin.distribution in distributions]
            entries = siblings if len(siblings) == 1 else entries
        spec = _resolve(kernel.scoring, entries).spec
        assert isinstance(spec, ScoringSpec)
        return spec

    def kernels(self, scoring: ScoringSpec) -> list[KernelSpec]:
        """The kernels of a scoring function, highest priority first."""
        return self._kernels.get(id(scoring), [])

    @functools.cached_property
    def _kernels(self) -> dict[int, list[KernelSpec]]:
        table: dict[int, list[KernelSpec]] = {}
        kernels = [spec for _, spec, _ in self.specs() if isinstance(spec, KernelSpec)]
        for kernel in sorted(kernels, key=lambda kernel: (-kernel.priority, kernel.name)):
            with contextlib.suppress(LookupError):  # raised when the kernel itself is looked up
                table.setdefault(id(self.scoring_for(kernel)), []).append(kernel)
        return table

    @functools.cached_property
    def _by_origin(self) -> dict[str, ScoringSpec]:
        scorings = (spec for _, spec, _ in self.specs() if isinstance(spec, ScoringSpec))
        return {getattr(spec.make, ORIGIN): spec for spec in scorings}

    def scoring_by_origin(self, origin: str | None) -> ScoringSpec | None:
        """The scoring function that made a module of this origin; ``None`` if none did."""
        return self._by_origin.get(origin) if origin is not None else None

    def invariants(self) -> list[Invariant]:
        """Every invariant and law, sorted by name; see :meth:`all_of`."""
        return self.all_of(Invariant)

    def all_of(self, kind: type[_Other]) -> list[_Other]:
        """Every invariant, format or style, sorted by name.

        Raises:
            DuplicateNameError: two plugins register one of the same name, and none is built in.
        """
        return [self.one_of(kind, name) for name in sorted(self._others[kind])]

    def one_of(self, kind: type[_Other], name: str) -> _Other:
        """The invariant, format or style of a name.

        Raises:
            DuplicateNameError: two plugins register one of this name, and none is built in.
        """
        spec = _resolve(name, self._others[kind][name]).spec
        assert isinstance(spec, kind)
        return spec

    def invariant_plugin(self, name: str) -> str:
        """The distribution that registers an invariant, for messages."""
        plugins = [entry.plugin for entry in self._others[Invariant].get(name, [])]
        return ", ".join(f"{p.distribution} {p.version}" for p in plugins) or "unknown"


def _no_scoring_text(kernel: KernelSpec, names: frozenset[str]) -> str:
    return (
        f"kernel {kernel.name!r} names {kernel.scoring!r}, which is no scoring function. "
        f"{nearest(kernel.scoring, names)}"
    )


def _resolve(key: str, entries: list[Entry]) -> Entry:
    """The entry that a bare name means: the only one, or the built-in one.

    Raises:
        DuplicateNameError: there are several, and not exactly one is built in.
    """
    built_in = [entry for entry in entries if entry.plugin.distribution == BUILT_IN]
    for candidates in (entries, built_in):
        if len(candidates) == 1:
            return candidates[0]
    raise DuplicateNameError(_duplicate_text(key, entries))


def _remedy(entry: Entry) -> str:
    if isinstance(entry.spec, _OTHERS):
        return "Rename yours, which does not run."
    return f"{entry.plugin.distribution}:{entry.key} reaches the other; rename it."


def _duplicate_text(key: str, entries: list[Entry]) -> str:
    kind = entries[0].spec.kind
    count = "twice" if len(entries) == 2 else f"{len(entries)} times"
    lines = [f"{kind} {key!r} is registered {count}:"]
    lines += [
        f"  by {r.plugin.distribution} {r.plugin.version} (entry point {r.plugin.name!r})"
        for r in entries
    ]
    addresses = " or ".join(f"{r.plugin.distribution}:{key}" for r in entries)
    # an invariant is never named by its distribution: its name is its id in every report
    remedy = (
        "Uninstall one, "
        if kind in ("invariant", "format")
        else (f"Name one by its distribution ({addresses}), uninstall one, ")
    )
    lines.append(f"{remedy}or set {DISABLED_VARIABLE}={entries[-1].plugin.name}.")
    return "\n".join(lines)


def load(plugins: Iterable[Plugin] | None = None) -> Registry:
    """Load each plugin separately; if one fails, the others are unaffected."""
    return Registry(load_plugin(plugin) for plugin in (discover() if plugins is None else plugins))


@functools.cache
def registry() -> Registry:
    """The registry of this process, loaded at the first call."""
    return load()


def plugins_and_shadows() -> tuple[list[dict[str, Any]], list[str]]:
    """Load every plugin; a row for each, and a sentence for each built-in name that one registers.

    The row of a plugin that failed has the error.
    """
    rows = [
        {
            **plugin.as_row(),
            "brings": [spec_key(spec) for spec in plugin.specs],
            "message": plugin.message,
            "traceback": plugin.trace,
        }
        for plugin in registry().plugins
    ]
    return rows, registry().shadowed
