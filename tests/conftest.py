"""What all tests share."""

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# threads of several processes of tests would wait for each other
os.environ.setdefault("OMP_NUM_THREADS", "1")

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

LEVELS = {
    "plugins": "all",
    "tests/benchmark/test_cheats.py": "all",
    "tests/benchmark/test_measure.py::test_parameters_by_head_are_compared_"
    "with_all_heads_together": "all",
    "tests/benchmark/test_measure.py": "slow",
    "tests/browser": "all",
    "tests/calling/test_adaptation.py": "slow",
    "tests/calling/test_calls_by_trial.py": "slow",
    "tests/calling/test_examples.py": "slow",
    "tests/calling/test_functions.py": "slow",
    "tests/calling/test_layers.py": "slow",
    "tests/calling/test_likelier_readings.py": "slow",
    "tests/calling/test_masks_found.py": "slow",
    "tests/calling/test_multihead.py": "slow",
    "tests/calling/test_outputs_behind.py::test_what_pools_the_wrong_slots_"
    "or_by_wrong_weights_fails": "all",
    "tests/calling/test_outputs_behind.py": "slow",
    "tests/calling/test_probing.py": "slow",
    "tests/calling/test_refusals.py": "slow",
    "tests/calling/test_sides_told_apart.py": "slow",
    "tests/calling/test_textbooks.py::test_a_right_class_is_not_accused": "all",
    "tests/calling/test_textbooks.py::test_a_wrong_class_fails": "all",
    "tests/calling/test_textbooks.py": "slow",
    "tests/checking/explain": "slow",
    "tests/checking/test_answer_faults.py": "slow",
    "tests/checking/test_api.py": "slow",
    "tests/checking/test_canaries.py": "slow",
    "tests/checking/test_hypothesis_engine.py": "slow",
    "tests/checking/test_own_strategies.py": "slow",
    "tests/cli/test_action.py": "all",
    "tests/cli/test_check.py::test_each_way_to_break_the_contract_has_an_"
    "outcome_with_the_values": "all",
    "tests/cli/test_check.py::test_quick_leaves_subjects_with_options_to_"
    "other_profiles_and_says_so": "all",
    "tests/cli/test_check_goes_on.py": "all",
    "tests/cli/test_plugins_that_misbehave.py": "all",
    "tests/cli/test_run.py": "all",
    "tests/cli": "slow",
    "tests/cluster": "all",
    "tests/docs": "slow",
    "tests/plugins/properties/caches/test_caches.py::test_a_failure_prints_a_short_"
    "script_that_was_run": "all",
    "tests/invariants": "slow",
    "tests/meta/test_mutants.py::test_a_mutant_is_killed_by_each_invariant_that_is_meant_to": "all",
    "tests/meta/test_mutants.py::test_the_right_twin_passes_what_kills_its_mutants": "all",
    "tests/meta/test_right.py": "all",
    "tests/meta/test_measure.py": "all",
    "tests/meta": "slow",
    "tests/packaging/test_third_party.py": "all",
    "tests/plugins/comparing": "all",
    "tests/plugins/explaining/test_script.py": "all",
    "tests/plugins/formats": "",
    "tests/plugins/test_new.py": "all",
    "tests/plugins/test_page.py": "",
    "tests/plugins": "slow",
    "tests/registry/test_uninstalled.py": "all",
    "tests/test_asv.py": "all",
    "tests/test_imports.py::test_a_check_imports_torch_in_its_children_only": "slow",
    "tests/test_imports.py::test_a_check_without_gradients_does_not_import_sympy": "slow",
    "tests/test_pytest_plugin.py::test_it_works_under_xdist": "all",
    "tests/test_pytest_plugin.py": "slow",
}
"""From which level on a folder, a file or a test runs; the first that fits counts.

Those of no level run by a plain ``pytest`` as well, in a minute: units, and a subject of each kind.
Those marked ``slow`` run by ``tox``, and those marked ``all`` by ``tox -e all`` alone.
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with its level."""
    root = Path(__file__).parents[1]
    for item in items:
        if root not in item.path.parents:
            continue
        place = item.path.relative_to(root).as_posix()
        test = f"{place}::{item.name.partition('[')[0]}"
        fits = (at for at in LEVELS if test == at or test.startswith((f"{at}/", f"{at}::")))
        level = LEVELS.get(next(fits, ""))
        if level:
            item.add_marker(level)


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
