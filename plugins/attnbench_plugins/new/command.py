"""``attnbench new``: write a plugin distribution to edit, or the spec of existing code."""

from __future__ import annotations

import importlib.util
import json
import keyword
import os
import re
import shlex
import sys
from dataclasses import asdict
from importlib import metadata, resources
from pathlib import Path
from string import Template
from typing import Annotated, Any

import typer

from attnbench import UsageError
from attnbench.commands import KINDS, Address, Style, ask, parse_address, print_line, write_file

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_.][A-Za-z0-9]+)*")
_FIELDS = f"{__name__}:adapted_fields"
_TEMPLATES = resources.files(__package__) / "templates"


def command(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Name of the distribution, such as my-scores; with --from, of the file.",
            show_default=False,
        ),
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
        if layer:
            raise UsageError("--from writes a single spec; omit --layer.")
        file = _write_spec(source, style, into, name)
        print_line(f"Wrote {file}. Edit it, then:\n  attnbench check {shlex.quote(str(file))}:SPEC")
        return 0
    if style is not None:
        raise UsageError("--as describes how the target of --from is called; add --from.")
    if name is None:
        raise UsageError("name the distribution, as in: attnbench new my-scores.")
    lines = _write_distribution(name, into, layer=layer)
    print_line("\n  ".join(lines))
    return 0


def _write_distribution(name: str, into: Path, *, layer: bool) -> list[str]:
    """Write a distribution; returns a line that says so, and the commands to try."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} cannot name a distribution: use letters, digits, '-', '_' and '.', "
            "and begin with a letter."
        )
    module = re.sub(r"[-.]", "_", name).lower()
    target = into / name
    if target.exists():
        raise UsageError(f"{target} already exists; choose another name, or a folder with --into.")
    _refuse_taken(name, module)
    values = {
        "distribution": name,
        "module": module,
        "torch": metadata.version("torch").partition("+")[0],
        "attnbench": _requirement(),
    }
    for path, text in _files("layer" if layer else "new", values):
        write_file(target / path, text.encode(), "--into")
    lines = [f"pip install -e {shlex.quote(str(target))}", f"attnbench check {module}"]
    lines += [] if layer else [f"attnbench bench {module} scaled_dot"]
    first = f"Wrote {target}. Edit {target / module / '__init__.py'}, then:"
    return [first, *lines]


def _refuse_taken(name: str, module: str) -> None:
    """Refuse the name of an existing module, which would hide, or be hidden by, the new one."""
    found = importlib.util.find_spec(module)
    if keyword.iskeyword(module) or module in sys.stdlib_module_names:
        problem = f"{module!r} is a keyword or a standard module of Python"
    elif found is not None and found.origin is not None:
        problem = f"its module {module!r} is already installed here ({found.origin})"
    else:
        return
    raise UsageError(f"{name!r} cannot name a distribution: {problem}; choose another name.")


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
    with resources.as_file(_TEMPLATES / kind) as root:
        for source in sorted(root.rglob("*.template")):
            place = str(source.relative_to(root).with_suffix(""))
            path = Path(".gitignore" if place == "gitignore" else place.replace("module", module))
            texts.append((path, Template(source.read_text("utf-8")).substitute(values)))
    return texts


def _write_spec(target: str, style: str | None, into: Path, name: str | None) -> Path:
    """Write a spec with everything that the adapter knows about a target, and return its file."""
    fields: dict[str, Any] = ask(_FIELDS, target=parse_address(target), style=style)
    file = into / f"{name or fields['name'].lower() + '_spec'}.py"
    if not file.stem.isidentifier():
        raise UsageError(f"{file.name} could not be imported: use letters, digits and '_'.")
    if file.exists():
        raise UsageError(f"{file} already exists; choose another name, or a folder with --into.")
    values = {
        "target": target,
        "as_style": f" --as {style}" if style else "",
        "file": file.name,
        "imports": "\n".join(_imports(fields, into)),
        "callee": f"None, {fields['attribute']}" if fields["is_mask_mod"] else fields["attribute"],
        "notes": "\n".join(f"# {note}" for note in fields["notes"]),
        "meant": "\n".join(_meant(fields)),
        "laws": repr(fields["laws"]).replace("'", '"'),
        **{key: fields[key] for key in ("name", "style", "formula")},
    }
    template = _TEMPLATES / "spec" / "spec.py.template"
    text = Template(template.read_text(encoding="utf-8")).substitute(values)
    write_file(file, text.encode(), "--into")
    return file


def adapted_fields(target: Address, style: str | None) -> dict[str, Any]:
    """The fields that an adapter knows about a function, module or class, as plain data.

    Raises:
        AttnbenchError: there is no such target, it already is a spec, or the style does not fit.
    """
    from attnbench.styles import LAYER_DEFAULTS, Conventions  # torch, in a child process alone
    from attnbench.testing import attribute, resolve

    address = target.called(style, {})
    (*_, subject) = resolve(address)
    spec: Any = subject.spec
    if address.source is None or isinstance(attribute(address), type(spec)):
        raise UsageError(
            f"{target} is declared already; --from is for a function, a module or a class, as "
            "path/to/file.py:NAME or package.module:NAME."
        )
    maker = getattr(spec.make, "__wrapped__", spec.make)
    return {
        "name": spec.name,
        "style": getattr(spec, "style", "spec_of"),
        "formula": spec.formula,
        "accepts": getattr(spec, "accepts", None),
        "laws": spec.laws,
        "conventions": dict(getattr(spec, "conventions", {})),
        "defaults": dict(LAYER_DEFAULTS) if subject.kind == "layer" else asdict(Conventions()),
        "notes": [note for note in subject.about if "conventions:" not in note],
        "file": address.source if address.is_file else None,
        "module": address.source,
        "attribute": address.name,
        "is_mask_mod": bool(getattr(getattr(maker, "callee", None), "mask_mod", None)),
    }


def _imports(fields: dict[str, Any], into: Path) -> list[str]:
    """The lines that import the adapter and the target, whose folder may be another one."""
    adapter = f"from attnbench.adapters import {fields['style']}"
    if fields["file"] is None:
        return [adapter, f"from {fields['module']} import {fields['attribute']}"]
    own = f"from {Path(fields['file']).stem} import {fields['attribute']}"
    folder = Path(fields["file"]).resolve().parent
    if folder == into.resolve():
        return [adapter, own]
    path = os.path.relpath(folder, into.resolve())
    where = f"sys.path.insert(0, str(Path(__file__).parent / {path!r}))"
    head = ["import sys", "from pathlib import Path", "", adapter]
    return [*head, "", where, f"{own}  # noqa: E402"]


def _meant(fields: dict[str, Any]) -> list[str]:
    """The lines on what a call takes and means; a scoring function has none."""
    if fields["accepts"] is None:
        return []
    lines = []
    for key, default in fields["defaults"].items():
        value = fields["conventions"].get(key, default)
        choices = [repr(word) for word in KINDS.get(key, ()) if word != value]
        hint = f"  # {'of' if key == 'masks' else 'or'} {', '.join(choices)}" if choices else ""
        sign = "" if key in fields["conventions"] else "# "
        text = "'-inf'" if value == float("-inf") else repr(value)
        lines.append(f"        {sign}'{key}': {text},{hint}".replace("'", '"'))
    accepts = repr(fields["accepts"]).replace("'", '"')
    return [
        "    # the keyword arguments that it takes",
        f"    accepts={accepts},",
        "    # which of several usual meanings it follows; those behind # are the defaults",
        "    conventions={",
        *lines,
        "    },",
    ]
