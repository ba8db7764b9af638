"""Discovery of plugins by their metadata, and loading of each.

pluggy itself stops at the first failing entry point, silently drops a duplicate name, and leaves a
plugin half registered after a validation error. Each plugin therefore gets its own manager.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import metadata
from typing import Any, Literal

import pluggy
from packaging.utils import canonicalize_name

from attnbench import hookspecs
from attnbench.errors import PluginError, nearest
from attnbench.specs import (
    Format,
    Invariant,
    KernelSpec,
    LayerSpec,
    MechanismSpec,
    ScoringSpec,
    Style,
)
from attnbench.specs.common import is_count

Spec = ScoringSpec | MechanismSpec | KernelSpec | LayerSpec
AnySpec = Spec | Invariant | Format | Style

DISABLED_VARIABLE = "ATTNBENCH_DISABLED_PLUGINS"
HOOKS: dict[str, type[Any]] = {
    "attnbench_scorings": ScoringSpec,
    "attnbench_kernels": KernelSpec,
    "attnbench_mechanisms": MechanismSpec,
    "attnbench_layers": LayerSpec,
    "attnbench_invariants": Invariant,
    "attnbench_formats": Format,
    "attnbench_styles": Style,
}
EXPLAIN = "attnbench_explain"
"""The hook that is called with the failures of a subject, and not when a plugin is loaded."""


@dataclass(frozen=True)
class Plugin:
    """An entry point and its state.

    ``status`` is ``found`` (its metadata was read), ``blocked`` (must not be loaded), ``ok`` or
    ``failed``. ``message`` describes the failure in one sentence, and ``trace`` is its traceback.
    """

    name: str
    value: str
    distribution: str
    version: str
    status: Literal["found", "blocked", "ok", "failed"]
    requires: tuple[str, ...] = ()
    specs: tuple[AnySpec, ...] = ()
    explain: Callable[[Any, Sequence[Any]], list[Any]] | None = field(default=None, compare=False)
    message: str = ""
    trace: str = ""
    entry_point: metadata.EntryPoint | None = field(default=None, repr=False, compare=False)

    def failed(self, error: BaseException) -> Plugin:
        """The same plugin as failed, without its specs."""
        lines = traceback.format_exception(error)
        message = f"{type(error).__name__}: {error}"
        return replace(self, status="failed", message=message, trace="".join(lines), specs=())

    def as_row(self) -> dict[str, Any]:
        """Its metadata as a row of ``attnbench list --plugins``."""
        values = {n: getattr(self, n) for n in ("status", "distribution", "version")}
        return {"plugin": self.name, **values, "module": self.value}


def _describe(dist: metadata.Distribution | None) -> dict[str, Any]:
    """Name, version and requirements of a distribution; each call parses its metadata."""
    if dist is None:
        return {"distribution": "unknown", "version": "0"}
    names = (re.match(r"[\w.-]+", text) for text in dist.requires or ())
    requires = tuple(sorted({canonicalize_name(match.group()) for match in names if match}))
    return {"distribution": dist.name, "version": dist.version, "requires": requires}


def discover() -> list[Plugin]:
    """Find every installed plugin by its metadata, sorted by name and distribution.

    Those that the environment variable ``ATTNBENCH_DISABLED_PLUGINS`` names, by their entry points
    or distributions and separated by commas, are blocked.
    """
    names = os.environ.get(DISABLED_VARIABLE, "").split(",")
    blocked = {canonicalize_name(name.strip()) for name in names if name.strip()}
    plugins = []
    describe = functools.cache(_describe)
    for point in metadata.entry_points(group=hookspecs.PROJECT):
        facts = describe(point.dist)
        own_names = {canonicalize_name(name) for name in (point.name, facts["distribution"])}
        plugins.append(
            Plugin(
                name=point.name,
                value=point.value,
                status="blocked" if own_names & blocked else "found",
                entry_point=point,
                **facts,
            )
        )
    return sorted(plugins, key=lambda p: (p.name, p.distribution))


class _Manager(pluggy.PluginManager):
    """A manager for one plugin; as in pytest, a function is a hook by its name alone."""

    def parse_hookimpl_opts(self, plugin: object, name: str) -> Any:
        options = super().parse_hookimpl_opts(plugin, name)
        if options is None and name.startswith("attnbench_"):
            return {} if inspect.isroutine(getattr(plugin, name)) else None
        return options


def call_hooks(namespace: object) -> tuple[AnySpec, ...]:
    """All specs that the hooks of one plugin return; without hooks, the invariants that it holds.

    Raises:
        PluginError: a hook is misspelt, there is neither a hook nor an invariant, a hook returns
            something else, or the plugin states a newer contract.
    """
    manager, callers = _callers(namespace)
    if contract := callers.pop("attnbench_contract", None):
        _check_contract(contract())  # first, since hooks of a newer contract are unknown here
    for caller in callers.values():
        known = (*HOOKS, EXPLAIN)
        if caller.name not in known:
            raise PluginError(
                f"{caller.name!r} is not a hook of attnbench. {nearest(caller.name, known)}"
            )
    manager.check_pending()
    if not callers:
        held = [value for value in vars(namespace).values() if isinstance(value, Invariant)]
        if held:
            return tuple(held)
        raise PluginError(
            f"{namespace!r} has no hook. Define one of {', '.join(HOOKS)}, "
            "and let the entry point name the module that holds it."
        )
    return tuple(
        spec
        for name, caller in callers.items()
        if name in HOOKS
        for spec in _results(name, caller())
    )


def _callers(namespace: object) -> tuple[_Manager, dict[str, pluggy.HookCaller]]:
    manager = _Manager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    name = manager.register(namespace)
    return manager, {c.name: c for c in manager.get_hookcallers(namespace) or () if name}


def explainer_of(namespace: object) -> Callable[[Any, Sequence[Any]], list[Any]] | None:
    """The hook of a plugin that explains failures, if it has one."""
    caller = _callers(namespace)[1].get(EXPLAIN)
    if caller is None:
        return None
    return lambda subject, failures: caller(subject=subject, failures=failures)


def _check_contract(versions: Sequence[object]) -> None:
    for version in versions:
        if not is_count(version):
            raise PluginError(
                f"attnbench_contract returned {version!r}, but should return the version of the "
                f"contract that the plugin is written for, 1 to {hookspecs.VERSION}."
            )
        if version > hookspecs.VERSION:  # type: ignore[operator]  # it is a number
            raise PluginError(
                f"it is written for version {version} of the plugin contract, and this attnbench "
                f"({metadata.version('attnbench')}) knows only those up to {hookspecs.VERSION}: "
                "upgrade attnbench, or install an older release of the plugin."
            )


def _results(hook: str, results: Sequence[object]) -> Iterator[AnySpec]:
    expected = HOOKS[hook]
    for result in results:
        if isinstance(result, str | bytes) or not isinstance(result, Iterable):
            raise PluginError(
                f"{hook} returned {result!r}, but should return an iterable of "
                f"{expected.__name__}; write 'return [spec]' or 'yield spec'."
            )
        for item in result:
            if not isinstance(item, expected):
                raise PluginError(
                    f"{hook} gave {item!r} ({type(item).__name__}), but should give "
                    f"{expected.__name__}; other kinds have hooks of their own: "
                    f"{', '.join(h for h in HOOKS if h != hook)}."
                )
            yield item


def unmet(owner: str) -> Iterator[tuple[Any, str | None]]:
    """The requirements of a distribution that have another version installed, or ``None``."""
    from packaging.requirements import Requirement

    texts = metadata.requires(owner) if installed_version(owner) is not None else ()
    for requirement in map(Requirement, texts or ()):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            version = installed_version(requirement.name)
            if version is None or not requirement.specifier.contains(version, prereleases=True):
                yield requirement, version


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; ``None`` if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


@functools.cache  # to read the requirements once for all plugins of a distribution
def _check_core(distribution: metadata.Distribution) -> None:
    """Compare a plugin's requirement of attnbench with the installed version.

    Raises:
        PluginError: the plugin is made for another version.
    """
    for requirement, core in unmet(distribution.name):
        if canonicalize_name(requirement.name) == hookspecs.PROJECT:
            raise PluginError(
                f"{distribution.name} {distribution.version} is made for attnbench "
                f"{requirement.specifier}, but {core} is installed. Install versions that fit: "
                f"pip install --upgrade attnbench {distribution.name}."
            )


def load_plugin(plugin: Plugin) -> Plugin:
    """Load a plugin; the result is ``ok`` or ``failed``. A blocked plugin is returned unchanged."""
    if plugin.status != "found" or plugin.entry_point is None:
        return plugin
    try:
        if plugin.entry_point.dist is not None:
            _check_core(plugin.entry_point.dist)
        namespace = plugin.entry_point.load()
        specs = call_hooks(namespace)
        explain = explainer_of(namespace)
    except (Exception, SystemExit) as error:
        return plugin.failed(error)
    return replace(plugin, status="ok", specs=specs, explain=explain)
