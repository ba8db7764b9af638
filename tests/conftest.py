"""What all tests share."""

from attnbench.discovery import Spec
from attnbench.registry import spec_key
from attnbench.specs import KernelSpec, MechanismSpec, ScoringSpec


def pytest_make_parametrize_id(config, val, argname):
    """Name a spec in a test's id: its repr holds an address, another one in each worker."""
    if isinstance(val, ScoringSpec | MechanismSpec | KernelSpec):
        spec: Spec = val
        return spec_key(spec)
    return None
