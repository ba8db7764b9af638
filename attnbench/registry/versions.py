"""Versions of the installed distributions, and whether they fit together."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from attnbench.registry.discovery import discover, installed_version, unmet


def version_problems(owners: Sequence[str] | None = None, *, missing: bool = True) -> list[str]:
    """Requirements that have another version than the installed one, or are missing, in words.

    Args:
        owners: distributions whose requirements are read; by default attnbench and all plugins.
        missing: whether to name requirements that are not installed.
    """
    problems = []
    plugins = {plugin.distribution: None for plugin in discover()}
    for owner in dict.fromkeys(("attnbench", *plugins)) if owners is None else owners:
        for requirement, version in unmet(owner):
            if version is not None:
                problems.append(_other_version(owner, requirement, version))
            elif missing:
                problems.append(f"{owner} needs {requirement}, which is not installed.")
    return problems


def too_old(name: str) -> str | None:
    """That the installed version of what attnbench needs is below the lowest, in words."""
    for requirement, version in unmet("attnbench"):
        least = [part for part in requirement.specifier if part.operator == ">="]
        met = version is None or all(part.contains(version, prereleases=True) for part in least)
        if requirement.name == name and not met:
            return _other_version("attnbench", requirement, str(version))
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
