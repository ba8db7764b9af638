"""Every library gives its subjects, or says how to get them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from attnbench_peers.library import LIBRARIES

import attnbench

MODULES = sorted(
    point.value
    for point in entry_points(group="attnbench")
    if point.value.startswith("attnbench_peers.")
)
QUERY, KEY, VALUE = torch.randn(2, 2, 3, 4), torch.randn(2, 2, 5, 4), torch.randn(2, 2, 5, 4)


def specs(hook: str) -> Iterator[Any]:
    for module in map(import_module, MODULES):
        yield from getattr(module, hook, tuple)()


def test_the_command_lists_every_library() -> None:
    command = [sys.executable, "-m", "attnbench_peers"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [line.split()[0] for line in listed.splitlines()] == list(LIBRARIES)


def test_every_spec_is_a_subject_of_its_own_name() -> None:
    names = [spec.name for hook in ("mechanisms", "layers") for spec in specs(f"attnbench_{hook}")]
    assert len(names) == len(set(names))
    assert set(names) <= set(attnbench.subjects())


@pytest.mark.parametrize("spec", list(specs("attnbench_mechanisms")), ids=lambda spec: spec.name)
def test_a_mechanism_pools_values(spec: Any) -> None:
    module = spec.make(4, 4, 4).eval()
    output = module(QUERY, KEY, VALUE)
    assert output.shape == (2, 2, 3, 4)
    assert output.dtype == torch.float32
    assert output.isfinite().all()
    assert not torch.equal(output, module(QUERY, KEY, VALUE + 1))


@pytest.mark.parametrize("spec", list(specs("attnbench_layers")), ids=lambda spec: spec.name)
def test_a_layer_maps_hidden_states(spec: Any) -> None:
    size = 8 if spec.sizes is None else spec.sizes(8)
    module, hidden = spec.make(size).eval(), torch.randn(2, 5, size)
    real = {"padding_mask": torch.tensor([[True] * 5, [True] * 3 + [False] * 2])}
    with torch.no_grad():
        output = module(hidden, **(real if "padding_mask" in spec.accepts else {}))
    assert output.shape == hidden.shape
    assert output[0].isfinite().all()
    assert not torch.equal(output, hidden)
