"""Functions that commands run in child processes, where torch and the plugins are imported.

Arguments and results are plain data; :mod:`attnbench.cli.plugin_loading` and the commands call
these functions by name.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from attnbench.cases.case import Case
from attnbench.errors import PluginError, UsageError
from attnbench.processes.tracebacks import is_own_code
from attnbench.registry.address import Address
from attnbench.registry.catalog import BUILT_IN, registry, spec_key
from attnbench.specs import Format, KernelSpec, LayerSpec
from attnbench.specs.conventions import LAYER_DEFAULTS, Conventions


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


def subject_rows(
    targets: Sequence[Address] | None, case_id: str | None = None, size: int | None = None
) -> list[dict[str, Any]]:
    """Rows for the subjects of some addresses, or all installed ones, as in ``attnbench list``.

    Args:
        targets: addresses; ``None`` for all.
        case_id: case for which kernels are asked for support; ``None`` to ask none.
        size: an E; the row of a layer gets the nearest legal one.
    """
    from attnbench.subject.lookup import installed, resolve

    subjects = installed() if targets is None else [s for t in targets for s in resolve(t)]
    rows = []
    for subject in subjects:
        maker = subject.maker
        rows.append(
            {
                "subject": subject.name,
                "target": subject.address,
                "kind": subject.kind,
                "formula": maker.formula,
                "source": maker.source,
                "laws": list(maker.laws),
                "dtypes": list(subject.dtypes),
                "equal_sizes": getattr(maker, "equal_sizes", False),
                "layer": _layer(subject, size),
                "exempt": dict(subject.exempt),
                "kernels": _kernels(subject, case_id) if case_id else [],
            }
        )
    return rows


def _layer(subject: Any, size: int | None) -> dict[str, Any] | None:
    """The fields of a layer's spec on calls and caches; ``None`` for other subjects."""
    maker = subject.maker
    if not isinstance(maker, LayerSpec):
        return None
    cache, sizes = maker.cache, {}
    if size is not None:
        sizes["size"] = size
        with contextlib.suppress(Exception):  # if sizes raises, so does the measurement
            sizes["size"] = subject.legal(Case(query_size=size)).query_size
    return {
        **sizes,
        "causal": maker.causal,
        "window": maker.window,
        "accepts": list(maker.accepts),
        "cache": None
        if cache is None
        else {
            "operations": [n for n in ("select", "crop", "length") if getattr(cache, n)],
            "capacity": cache.capacity,
        },
    }


def invariant_rows() -> list[dict[str, Any]]:
    """Rows for all invariants and laws, as in ``attnbench list --invariants``."""
    from attnbench.checking.plan import select_invariants

    return [
        {
            "invariant": invariant.name,
            "kind": "law" if invariant.law else "invariant",
            "statement": invariant.statement,
        }
        for invariant in select_invariants(None)
    ]


def _kernels(subject: Any, case_id: str) -> list[dict[str, Any]]:
    """The kernels of a scoring function in the order of ``kernel="auto"``, with their refusals."""
    from attnbench.attention.dispatch import choices

    if subject.kind != "scoring":
        return []
    case = subject.legal(Case.from_id(case_id))
    return [
        {
            "kernel": choice.kernel.name,
            "priority": choice.kernel.priority,
            "reason": choice.reason,
            "runs_as": choice.kernel.runs_as() if choice.kernel.runs_as else "",
        }
        for choice in choices(subject.spec, case)
    ]


def format_rows() -> dict[str, bool]:
    """The formats by name, and whether each asks for places of failures; built-in ones win."""
    plugins = sorted(registry().plugins, key=lambda plugin: plugin.distribution == BUILT_IN)
    specs = (spec for plugin in plugins for spec in plugin.specs if isinstance(spec, Format))
    return {spec.name: spec.located for spec in specs}


def rendered(name: str, findings: Any) -> str:
    """The text of a report in a format.

    Raises:
        PluginError: the format gives something else.
    """
    text = registry().one_of(Format, name).render(findings)
    if not isinstance(text, str):
        raise PluginError(f"it gave {type(text).__name__}, but a format gives text")
    return text


def code_line_of(target: Address) -> tuple[str, int] | None:
    """File and line of the code of the subject of an address."""
    from attnbench.subject.lookup import resolve

    (subject,) = resolve(target)
    return code_line(subject)


def code_line(subject: Any) -> tuple[str, int] | None:
    """File and line where the user's code that computes a subject's answer is defined.

    That is the kernel, the function or class that an adapter calls, the class of the module that
    ``make`` returns or of one within it, or else ``make``; ``None`` if no source of any is at hand.
    """
    for part in _code_parts(subject):
        part = inspect.unwrap(getattr(part, "func", part))  # of a partial
        part = part if inspect.isroutine(part) or inspect.isclass(part) else type(part)
        if inspect.isclass(part) and "forward" in vars(part):
            part = inspect.unwrap(vars(part)["forward"])
        with contextlib.suppress(TypeError, OSError):
            file = str(inspect.getsourcefile(part))
            if is_own_code(file):
                return file, inspect.getsourcelines(part)[1]
    return None


def _code_parts(subject: Any) -> Iterator[Any]:
    if isinstance(subject.spec, KernelSpec):
        yield subject.spec.attend
        return
    make = inspect.unwrap(subject.maker.make)
    for holder in (subject.spec, make):
        yield getattr(holder, "callee", None)
    with contextlib.suppress(Exception):  # what is wrong with it, its check has told
        yield from dict.fromkeys(type(part) for part in subject.make(4, 4, 4).modules())
    yield make


def adapted_fields(target: Address, style: str | None) -> dict[str, Any]:
    """The fields that an adapter knows about a function, module or class, as plain data.

    Raises:
        AttnbenchError: there is no such target, it already is a spec, or the style does not fit.
    """
    from attnbench.subject.lookup import attribute, resolve

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
