"""What all tests share."""

import importlib.util
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# behind site-packages: `tests.meta` is found here, and attnbench where it is installed
sys.path.append(str(Path(__file__).parent.parent))

# what failed in one test, or in the run before, must not be tried first in another one; the tests
# of packaging run where Hypothesis is not installed
if importlib.util.find_spec("hypothesis"):
    from hypothesis import settings

    settings.register_profile("attnbench", database=None)
    settings.load_profile("attnbench")

# a shell has what it runs in the background ignore Ctrl-C, and so would what a test interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)

MARKS = {
    "plugins": "all",
    "tests/meta": "mutants",
    "tests/invariants/layers": "mutants",
    "tests/invariants/test_numerics.py": "mutants",
    "tests/invariants/calls/test_compiling.py": "compile",
    "tests/plugins/kernels": "compile",
    "tests/benchmark/comparing": "slow",
    "tests/benchmark/test_cheats.py": "slow",
    "tests/checking/explain/test_script.py": "slow",
    "tests/checking/test_hypothesis_engine.py": "slow",
    "tests/cli": "slow",
    "tests/docs": "slow",
    "tests/calling/test_layers.py": "slow",
    "tests/calling/test_textbooks.py": "slow",
    "tests/test_asv.py": "slow",
    "tests/test_pytest_plugin.py": "slow",
}
"""Markers by folder or file, from the repository's root. A plain ``pytest`` leaves all of them out;
``tox`` runs all but those marked ``all``, which ``tox -e all`` runs."""

FIRST = {
    "tests/cli/test_compare_revisions.py::test_bad_input_is_one_clear_error": 4,
}
"""Tests of seconds a case: their cases after the first few are for ``tox -e long``."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what takes long, by where it is and how many of a kind come before it."""
    root = Path(__file__).parents[1]
    seen = Counter[str]()
    for item in items:
        if root not in item.path.parents:
            continue
        place = item.path.relative_to(root).as_posix()
        test = f"{place}::{item.name.partition('[')[0]}"
        seen[test] += 1
        if seen[test] > FIRST.get(test, seen[test]):
            item.add_marker("long")
        for start, mark in MARKS.items():
            if place == start or place.startswith(f"{start}/"):
                item.add_marker(mark)


@pytest.fixture(autouse=True)
def _no_module_of_a_test_stays() -> Iterator[None]:
    """Forget the files of a test that were imported: the next may have others of those names."""
    before = list(sys.path)
    known = set(sys.modules)
    yield
    sys.path[:] = before
    for name in set(sys.modules) - known:
        if "pytest-of-" in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def pytest_make_parametrize_id(config: Any, val: Any, argname: Any) -> Any:
    """Name a spec in a test's id: its repr holds an address, another one in each worker."""
    if type(val).__name__ in ("ScoringSpec", "MechanismSpec", "KernelSpec"):
        return f"{getattr(val, 'scoring', '')}/{val.name}".lstrip("/")
    return None
