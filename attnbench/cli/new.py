"""``attnbench new``: write a plugin distribution that installs and passes its checks unchanged."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shlex
import sys
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from attnbench.cli.options import Style
from attnbench.cli.plugin_loading import ask, load_plugins
from attnbench.cli.spec_files import write_spec
from attnbench.errors import UsageError
from attnbench.registry.versions import installed_version

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*")


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the distribution, such as my-scores; with --from, of the file.",
            show_default=False,
        ),
    ] = None,
    scoring: Annotated[
        str | None,
        typer.Option("--scoring", help="Name of its scoring function; by default the module's."),
    ] = None,
    layer: Annotated[
        bool, typer.Option("--layer", help="Write a layer with a cache instead.")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="TARGET",
            help="Write the spec of an existing function, module or class instead: "
            "path/to/file.py:NAME or package.module:NAME.",
        ),
    ] = None,
    style: Style = None,
    into: Annotated[Path, typer.Option("--into", help="Folder in which to create it.")] = Path(),
) -> int:
    """Write a plugin distribution to edit or, with --from, the spec of existing code."""
    if source is not None:
        if layer or scoring is not None:
            raise UsageError("--from writes a single spec; omit --layer and --scoring.")
        file = write_spec(source, style, into, name)
        typer.echo(f"Wrote {file}. Edit it, then:\n  attnbench check {shlex.quote(str(file))}:SPEC")
        return 0
    if style is not None:
        raise UsageError("--as describes how the target of --from is called; add --from.")
    if name is None:
        raise UsageError("name the distribution, as in: attnbench new my-scores.")
    module, scoring = _names(name, scoring, layer=layer)
    target = into / name
    if target.exists():
        raise UsageError(f"{target} already exists; choose another name, or a folder with --into.")
    _refuse_existing(name, module, scoring)
    _write(target, name, module, scoring, layer=layer)
    typer.echo(f"Wrote {target}. Edit {target / module / '__init__.py'}, then:")
    typer.echo(f"  pip install -e {shlex.quote(str(target))}\n  attnbench check {scoring}")
    if not layer:
        typer.echo(f"  attnbench bench {scoring} scaled_dot")
    return 0


def _names(name: str, scoring: str | None, *, layer: bool) -> tuple[str, str]:
    """The names of the module and of the scoring function.

    Raises:
        UsageError: one of them is no name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a distribution: use letters, digits, '-', '_' and '.', "
            "and begin with a letter."
        )
    module = re.sub(r"[-.]", "_", name).lower()
    scoring = scoring or module
    if not scoring.isidentifier():
        raise UsageError(
            f"{scoring!r} cannot name a scoring function: use letters, digits and '_'."
        )
    if layer and scoring != module:
        raise UsageError("--layer writes no scoring function; omit --scoring.")
    return module, scoring


def _write(target: Path, name: str, module: str, scoring: str, *, layer: bool) -> None:
    """Write the files of the distribution.

    Raises:
        UsageError: the folder cannot be written.
    """
    values = {
        "distribution": name,
        "module": module,
        "scoring": scoring,
        "torch": metadata.version("torch").partition("+")[0],
        "attnbench": _requirement(),
    }
    try:
        for path, text in _files("layer" if layer else "new", values):
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror}.") from None


def _refuse_existing(name: str, module: str, scoring: str) -> None:
    """Refuse names in use: an existing package would hide, or be hidden by, the new one.

    Raises:
        UsageError: the distribution, its module or its scoring function already exists.
    """
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        raise UsageError(
            f"{name!r} cannot name a distribution: {module!r} is a keyword or a standard module of "
            "Python. Choose another name."
        )
    if version := installed_version(name):
        raise UsageError(f"{name} {version} is installed here; choose another name.")
    module_spec = importlib.util.find_spec(module)
    if module_spec is not None and module_spec.origin is not None:
        raise UsageError(
            f"{name!r} would become the module {module!r}, which is already installed here "
            f"({module_spec.origin}); choose another name."
        )
    load_plugins(warn=False)
    subjects = {row["subject"]: row["kind"] for row in ask("subject_rows", targets=None)}
    if scoring in subjects:
        kind = {"scoring": "scoring function"}.get(subjects[scoring], subjects[scoring])
        raise UsageError(f"there already is a {kind} {scoring!r}; name yours with --scoring NAME.")


def _requirement() -> str:
    """The requirement by which pip installs this attnbench from its origin, not a namesake."""
    installed = metadata.distribution("attnbench")
    text = installed.read_text("direct_url.json")  # PEP 610: if it came from no index
    if text is None:
        return f"attnbench=={installed.version}"
    origin = json.loads(text)
    vcs = origin.get("vcs_info")
    return f"{vcs['vcs']}+{origin['url']}@{vcs['commit_id']}" if vcs else str(origin["url"])


def _files(kind: str, values: dict[str, str]) -> list[tuple[Path, str]]:
    """The files of a template by their places, which are named for the module."""
    texts, module = [], values["module"]
    with resources.as_file(resources.files("attnbench") / "templates" / kind) as root:
        for source in sorted(root.rglob("*.template")):
            place = str(source.relative_to(root).with_suffix(""))
            path = Path(".gitignore" if place == "gitignore" else place.replace("module", module))
            texts.append((path, Template(source.read_text("utf-8")).substitute(values)))
    return texts
