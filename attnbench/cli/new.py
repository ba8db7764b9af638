"""``attnbench new``: write a plugin distribution that passes its checks, or a spec of a target."""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import shlex
import sys
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from attnbench.cli.options import Style
from attnbench.cli.plugin_loading import ask, load_plugins
from attnbench.errors import UsageError
from attnbench.registry.address import parse_address
from attnbench.registry.versions import installed_version
from attnbench.specs.conventions import KINDS

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
        file = _write_spec(source, style, into, name)
        typer.echo(f"Wrote {file}. Edit it, then:\n  attnbench check {shlex.quote(str(file))}:SPEC")
        return 0
    if style is not None:
        raise UsageError("--as describes how the target of --from is called; add --from.")
    if name is None:
        raise UsageError("name the distribution, as in: attnbench new my-scores.")
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
    target = into / name
    if target.exists():
        raise UsageError(f"{target} already exists; choose another name, or a folder with --into.")
    _refuse_existing(name, module, scoring)
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
    typer.echo(f"Wrote {target}. Edit {target / module / '__init__.py'}, then:")
    typer.echo(f"  pip install -e {shlex.quote(str(target))}")
    typer.echo(f"  attnbench check {scoring}")
    if not layer:
        typer.echo(f"  attnbench bench {scoring} scaled_dot")
    return 0


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


def _write_spec(target: str, style: str | None, into: Path, name: str | None) -> Path:
    """Write a spec with everything that the adapter knows about a target, and return its file.

    Raises:
        AttnbenchError: the target or its style of call is wrong.
        UsageError: the file already exists.
    """
    load_plugins(warn=False)
    fields: dict[str, Any] = ask("adapted_fields", target=parse_address(target), style=style)
    file = into / f"{name or fields['name'].lower() + '_spec'}.py"
    if not file.stem.isidentifier():
        raise UsageError(f"{file.name} could not be imported: use letters, digits and '_'.")
    if file.exists():
        raise UsageError(f"{file} already exists; choose another name, or a folder with --into.")
    imports = [f"from attnbench.adapters import {fields['style']}"]
    if fields["file"] is None:
        imports.append(f"from {fields['module']} import {fields['attribute']}")
    else:
        imports.append(f"from {Path(fields['file']).stem} import {fields['attribute']}")
        folder = Path(fields["file"]).resolve().parent
        if folder != into.resolve():
            path = os.path.relpath(folder, into.resolve())
            where = f"sys.path.insert(0, str(Path(__file__).parent / {path!r}))"
            imports = ["import sys", "from pathlib import Path", "", imports[0], "", where]
            imports.append(
                f"from {Path(fields['file']).stem} import {fields['attribute']}  # noqa: E402"
            )
    values = {
        "target": target,
        "as_style": f" --as {style}" if style else "",
        "file": file.name,
        "imports": "\n".join(imports),
        "callee": f"None, {fields['attribute']}" if fields["is_mask_mod"] else fields["attribute"],
        "conventions": "\n".join(_lines(fields["conventions"], fields["defaults"])),
        **{key: fields[key] for key in ("name", "style", "formula")},
        **{key: repr(fields[key]).replace("'", '"') for key in ("accepts", "laws")},
    }
    source = resources.files("attnbench") / "templates" / "spec" / "spec.py.template"
    text = Template(source.read_text(encoding="utf-8")).substitute(values)
    try:
        into.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}.") from None
    return file


def _lines(conventions: dict[str, Any], defaults: dict[str, Any]) -> list[str]:
    lines = []
    for key, default in defaults.items():
        value = conventions.get(key, default)
        choices = [repr(word) for word in KINDS.get(key, ()) if word != value]
        hint = f"  # {'of' if key == 'masks' else 'or'} {', '.join(choices)}" if choices else ""
        sign = "" if key in conventions else "# "
        text = "'-inf'" if value == float("-inf") else repr(value)
        lines.append(f"        {sign}'{key}': {text},{hint}".replace("'", '"'))
    return lines
