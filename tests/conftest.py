"""What all tests share."""

import signal
import sys
from pathlib import Path
from typing import Any

from hypothesis import settings

# behind site-packages: `tests.meta.mutants` is found here, and attnbench where it is installed
sys.path.append(str(Path(__file__).parent.parent))

# what failed in one test, or in the run before, must not be tried first in another one
settings.register_profile("attnbench", database=None)
settings.load_profile("attnbench")

# a shell has what it runs in the background ignore Ctrl-C, and so would what a test interrupts
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(config: Any, val: Any, argname: Any) -> Any:
    """Name a spec in a test's id: its repr holds an address, another one in each worker."""
    if type(val).__name__ in ("ScoringSpec", "MechanismSpec", "KernelSpec"):
        return f"{getattr(val, 'scoring', '')}/{val.name}".lstrip("/")
    return None
