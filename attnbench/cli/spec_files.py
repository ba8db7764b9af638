"""The file that ``attnbench new --from`` writes: the spec of a function, module or class."""

from __future__ import annotations

import os
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from attnbench.cli.plugin_loading import ask, load_plugins
from attnbench.errors import UsageError
from attnbench.registry.address import parse_address
from attnbench.specs.conventions import KINDS


def write_spec(target: str, style: str | None, into: Path, name: str | None) -> Path:
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
        "notes": "\n".join(f"# {note}" for note in fields["notes"]),
        "meant": "\n".join(_meant(fields)),
        "laws": repr(fields["laws"]).replace("'", '"'),
        **{key: fields[key] for key in ("name", "style", "formula")},
    }
    source = resources.files("attnbench") / "templates" / "spec" / "spec.py.template"
    text = Template(source.read_text(encoding="utf-8")).substitute(values)
    try:
        into.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {file}: {error.strerror}.") from None
    return file


def _meant(fields: dict[str, Any]) -> list[str]:
    """The lines on what a call takes and means; a scoring function has none."""
    if fields["accepts"] is None:
        return []
    accepts = repr(fields["accepts"]).replace("'", '"')
    return [
        "    # the keyword arguments that it takes",
        f"    accepts={accepts},",
        "    # which of several usual meanings it follows; those behind # are the defaults",
        "    conventions={",
        *_lines(fields["conventions"], fields["defaults"]),
        "    },",
    ]


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
