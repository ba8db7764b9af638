"""Versions of the installed distributions, and whether they fit together."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata


def installed_version(name: str) -> str | None:
    """The version of an installed distribution; ``None`` if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def version_problems(
    owners: Sequence[str] = ("attnbench", "attnbench-kernels", "attnbench-ring"),
    *,
    missing: bool = True,
) -> list[str]:
    """Requirements that have another version than the installed one, or are missing, in words."""
    from packaging.requirements import Requirement

    problems = []
    for owner in owners:
        for text in (metadata.requires(owner) or ()) if installed_version(owner) else ():
            requirement = Requirement(text)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
                continue
            version = installed_version(requirement.name)
            if version is None and missing:
                problems.append(f"{owner} needs {requirement}, which is not installed.")
            elif version and not requirement.specifier.contains(version, prereleases=True):
                problems.append(
                    f"{owner} {installed_version(owner)} needs {requirement}, but {version} is "
                    f"installed: pip install '{requirement}'"
                )
    return problems
