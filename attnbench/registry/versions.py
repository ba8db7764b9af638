"""Versions of the installed distributions, and whether they fit together."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib import metadata

from attnbench.registry.discovery import discover


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; ``None`` if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def version_problems(owners: Sequence[str] | None = None, *, missing: bool = True) -> list[str]:
    """Requirements that have another version than the installed one, or are missing, in words.

    Args:
        owners: distributions whose requirements are read; by default attnbench and all plugins.
        missing: whether to name requirements that are not installed.
    """
    from packaging.requirements import Requirement

    problems = []
    plugins = {plugin.distribution: None for plugin in discover()}
    for owner in dict.fromkeys(("attnbench", *plugins)) if owners is None else owners:
        for text in (metadata.requires(owner) or ()) if installed_version(owner) else ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = installed_version(requirement.name)
            if version is None and missing:
                problems.append(f"{owner} needs {requirement}, which is not installed.")
            elif version and not requirement.specifier.contains(version, prereleases=True):
                problems.append(_other_version(owner, requirement, version))
    return problems


def too_old(name: str) -> str | None:
    """That the installed version of what attnbench needs is below the lowest, in words."""
    from packaging.requirements import Requirement

    version = installed_version(name)
    if version is None or installed_version("attnbench") is None:
        return None
    for requirement in map(Requirement, metadata.requires("attnbench") or ()):
        least = [part for part in requirement.specifier if part.operator == ">="]
        met = all(part.contains(version, prereleases=True) for part in least)
        if requirement.name == name and not met:
            return _other_version("attnbench", requirement, version)
    return None


def _other_version(owner: str, requirement: object, version: str) -> str:
    return (
        f"{owner} {installed_version(owner)} needs {requirement}, but {version} is "
        f"installed: pip install '{requirement}'"
    )


def installed_versions() -> dict[str, str]:
    """The versions on which machines must agree: Python, torch, attnbench and all plugins."""
    versions = {"python": ".".join(platform.python_version_tuple()[:2])}
    for name in ("attnbench", "torch"):
        versions[name] = (installed_version(name) or "absent").partition("+")[0]
    for plugin in discover():
        if plugin.distribution != "attnbench":
            versions[f"plugin {plugin.name!r} of {plugin.distribution}"] = plugin.version
    return versions
