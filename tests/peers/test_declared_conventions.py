"""What other libraries' attention declares is what small calls show."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

import pytest

from attnbench.adapters import probe

pytest.importorskip("attnbench_peers")


def mechanisms() -> Iterator[Any]:
    for point in sorted(entry_points(group="attnbench"), key=lambda point: point.value):
        if point.value.startswith("attnbench_peers."):
            yield from getattr(import_module(point.value), "attnbench_mechanisms", tuple)()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("spec", list(mechanisms()), ids=lambda spec: spec.name)
def test_small_calls_show_what_a_mechanism_declares(spec: Any) -> None:
    found = probe(spec).conventions
    for key, value in spec.conventions.items():
        if key == "masks":
            assert {*found[key]} - {"lengths"} == {*value}
        elif key != "mask_value" or key in found:  # -inf and very low numbers show the same
            assert found[key] == value, key
