"""What MkDocs builds from the sources: pictures, findings, the command line, the invariants.

Nothing here imports torch, so that the manual builds in an environment without it.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
CLASSROOM = ROOT / "plugins" / "attnbench-classroom"
NAME = re.compile(r"[a-z_0-9]+")
SOURCES = (
    ("attnbench/invariants", "plugins/attnbench_plugins/properties"),
    ("plugins/attnbench_plugins/laws",),
    ("plugins/attnbench_plugins/serving",),
)
"""Folders of invariants; those of the core and the built-in ones are one list, by topic."""
MAKERS = ("invariant", "layer_invariant", "_law")


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pictures and the page to play with, which are the classroom's, and the findings."""
    from mkdocs.structure.files import (  # the tests read the list of invariants without MkDocs
        File,
        InclusionLevel,
    )

    for folder, place in (("pictures", "pictures"), ("page", "classroom")):
        for path in sorted((CLASSROOM / folder).iterdir()):
            files.append(File.generated(config, f"{place}/{path.name}", abs_src_path=str(path)))
    table, pages = finding_modules()
    found, _ = table.read()
    made = pages.pages(found, table.accusations(), table.report, config.site_url or "")
    for name, text in made.items():
        page = File.generated(config, f"findings/{name}", content=text)
        page.inclusion = InclusionLevel.NOT_IN_NAV
        files.append(page)
    return files


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Put what is generated where a page asks for it, and leave out notes on pages without it."""
    markdown = re.sub(r"^(> [^\n]*\n)+\n", "", markdown, count=1, flags=re.M)
    for mark, generate in {
        "<!-- commands -->": commands,
        "<!-- invariants -->": invariants,
        "<!-- cases -->": cases,
        "<!-- findings -->": findings,
        "<!-- accusations -->": accusations,
        "<!-- questions -->": questions,
    }.items():
        if mark in markdown:
            markdown = markdown.replace(mark, generate())
    return markdown


def on_page_content(html: str, **context: Any) -> str:
    """Let pages be read on a phone; a picture is a link to itself, in its own size."""
    picture = r'(<img [^>]*src="([^"]+)"[^>]*>)'
    return labelled(unbroken(re.sub(picture, r'<a href="\2">\1</a>', html)))


def unbroken(html: str) -> str:
    """Options in running text that are not broken after their hyphens."""
    option = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")

    def kept(code: re.Match[str]) -> str:
        return option.sub(r'<span class="option">\g<0></span>', code.group())

    return re.sub(r"(?<!<pre>)<code>[^<\n]*</code>", kept, html)


def labelled(html: str) -> str:
    """Tables whose cells carry the name of their column, which narrow screens show in each.

    A table with many columns of text is marked, to be shown in this way on wide screens too. A long
    name in a cell may be broken after its dots, underscores and brackets.
    """

    def breakable(found: re.Match[str]) -> str:
        tag, name = found.groups()
        return tag or re.sub(r"(?<=\w[._(])(?=\w)", "<wbr>", name)

    def cells(table: re.Match[str]) -> str:
        heads = re.findall(r"<th[^>]*>(.*?)</th>", table.group(), re.DOTALL)
        names = [re.sub(r"<.*?>", "", head) for head in heads]
        if len(names) < 3:
            return table.group()
        place = iter(range(table.group().count("<td")))

        def cell(found: re.Match[str]) -> str:
            name = names[next(place) % len(names)]
            text = re.sub(r"(<[^>]*>)|((?<![^\s>])[^\s<]{24,})", breakable, found.group(2))
            return f'<td data-column="{name}"{found.group(1)}>{text}</td>'

        text = re.sub(r"<td([^>]*)>(.*?)</td>", cell, table.group(), flags=re.DOTALL)
        contents = re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)
        wordy = len(names) >= 4 and max(map(len, contents), default=0) > 200
        return text.replace("<table>", "<table data-cards>") if wordy else text

    return re.sub(r"<table>.*?</table>", cells, html, flags=re.DOTALL)


@functools.cache
def finding_modules() -> tuple[Any, Any]:
    """``table.py`` and ``pages.py`` of the folder of findings, which is no package."""
    made = []
    for name in ("table", "pages"):
        path = ROOT / "docs" / "findings" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(f"findings_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        made.append(module)
    return made[0], made[1]


def findings() -> str:
    """The overview of the findings in other libraries."""
    table, pages = finding_modules()
    return str(pages.overview(table.read()[0]))


def accusations() -> str:
    """What the suite accuses in other libraries, with verdicts."""
    table, pages = finding_modules()
    return str(pages.accusations_table(table.accusations()))


def commands() -> str:
    """The help of every command, of the core and of the plugins in this repository."""
    folders = [ROOT, ROOT / "plugins"]
    brought: dict[str, str] = {}
    for project in (ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))):
        groups = tomllib.loads(project.read_text("utf-8"))["project"].get("entry-points", {})
        brought |= groups.get("attnbench.commands", {})
        folders.append(project.parent)
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "command_help.py", *map("=".join, brought.items())],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, folders)), "TERM": "dumb"},
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    return done.stdout


def questions() -> str:
    """The questions of the notebooks, and the figure or exercise that each stands for."""
    sys.path.insert(0, str(CLASSROOM))
    from attnbench_classroom import cells

    lines = ["| notebook | its cell for | stands for |", "|---|---|---|"]
    for name in cells.names():
        for number, (question, kinds) in enumerate(cells.questions(name), 1):
            lines.append(f"| `{name}` | {number}. {question} | {' '.join(kinds.split())} |")
    return "\n".join(lines)


def invariants() -> str:
    """Names and statements of all invariants and laws, by topic."""
    trees = {
        path: ast.parse(path.read_text(encoding="utf-8"))
        for together in SOURCES
        for _, path in sorted(
            (path.relative_to(ROOT / folder), path)
            for folder in together
            for path in (ROOT / folder).rglob("*.py")
        )
    }
    names = {key: name for tree in trees.values() for key, name in _properties_of(tree)}
    topics, examples = [], caught()
    for path, tree in trees.items():
        a_law = " *A law.*" if "laws" in (*path.parts, path.stem) else ""
        rows = sorted(
            {(names.get(row[0], row[0]), *row[1:]) for row in _invariants_of(tree, a_law)}
        )
        if rows:
            title = (ast.get_docstring(tree) or path.stem).partition("\n")[0].rstrip(".")
            lines = [
                f"- [**`{name}`**](#{name}){{ #{name} }}: {statement}{law}{examples.get(name, '')}"
                for name, statement, law in rows
            ]
            head = f"## {path.stem.replace('_', ' ').capitalize()}\n\n{title}.\n"
            topics.append("\n".join([head, *lines]))
    return "\n\n".join(topics)


def cases() -> str:
    """What the words of a case mean, from the tables that name them."""
    names = {
        "MASKS": "mask",
        "LAYER_MASKS": "mask, of a layer",
        "LAYOUTS": "layout",
        "REGIMES": "values",
    }
    rows = ["| part of a case | word | meaning |", "|---|---|---|"]
    tree = ast.parse((ROOT / "attnbench" / "cases" / "case.py").read_text(encoding="utf-8"))
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id in names:
            words = ast.literal_eval(node.value)
            rows += [f"| {names[target.id]} | `{word}` | {text} |" for word, text in words.items()]
    return "\n".join(rows)


def caught() -> dict[str, str]:
    """For each invariant a bug of the zoo that it is meant to catch.

    A real one comes first, then one that few others catch.
    """
    zoo = ROOT / "plugins" / "attnbench-zoo" / "attnbench_zoo"
    killers = json.loads((zoo / "killers.json").read_text(encoding="utf-8"))
    head = re.compile(r"^(\w+): \w+ \| (.+\.) \| (.+)$", re.MULTILINE)
    bugs = [row for file in (zoo / "bugs").glob("*.txt") for row in head.findall(file.read_text())]
    found: dict[str, tuple[bool, int, str]] = {}
    for name, mistake, seen in bugs:
        example = f"  \n  Catches: {mistake}" + ("" if seen == "own" else f" *As in {seen}.*")
        for killer in killers.get(name, ()):
            entry = (seen == "own", len(killers[name]), example)
            found[killer] = min(entry, found.get(killer, entry))
    return {name: told for name, (*_, told) in found.items()}


def _properties_of(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Keys and names of the invariants that a module lists as ``"key": Property("name", ...)``."""
    for node in ast.walk(tree):
        for key, made in (
            zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        ):
            if isinstance(made, ast.Call) and getattr(made.func, "id", "") == "Property":
                name = made.args[0]
                if isinstance(key, ast.Constant) and isinstance(name, ast.Constant):
                    yield str(key.value), str(name.value)


def _decorators_of(function: ast.FunctionDef) -> list[ast.Call]:
    """The decorators that make an invariant, or a law, of a check."""
    calls = [each for each in function.decorator_list if isinstance(each, ast.Call)]
    return [each for each in calls if getattr(each.func, "id", "") in MAKERS]


def _invariants_of(tree: ast.Module, a_law: str) -> Iterator[tuple[str, str, str]]:
    """Name, statement and a mark for a law, of each invariant that a module makes.

    A module makes them by a decorator of a check, by calls with keywords, or by rows that begin
    with a name and a sentence.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (made := _decorators_of(node)):
            declared = any("law=True" in ast.unparse(each) for each in made)
            words = (ast.get_docstring(node) or "").partition("\n\n")[0]
            yield node.name, " ".join(words.split()), " *A law.*" if declared else a_law
        given: dict[str | None, ast.expr] = {}
        if isinstance(node, ast.Call):
            given = {word.arg: word.value for word in node.keywords}
        row = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
        first = [*row[:2], None, None]
        name, statement = given.get("name", first[0]), given.get("statement", first[1])
        if not (isinstance(name, ast.Constant) and isinstance(statement, ast.Constant)):
            continue
        words = str(statement.value)
        if NAME.fullmatch(str(name.value)) and " " in words and words.endswith("."):
            law = given.get("law")
            declared = isinstance(law, ast.Constant) and law.value is True
            yield str(name.value), words, " *A law.*" if declared else a_law
