"""What of the process a report names that another module changes."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from torch import Tensor, nn

import attnbench
from attnbench import LayerSpec

LAST: dict[str, int] = {}


class Scaled(nn.Module):
    """Outputs are scaled by a size: its own, or one that the process keeps."""

    size: ClassVar[int] = 0

    def __init__(self, size: int, kept: str) -> None:
        super().__init__()
        self.out, self.kept, self.own = nn.Linear(size, size), kept, size
        if kept == "name":
            LAST["size"] = size
        if kept == "class":
            Scaled.size = size

    def forward(self, hidden: Tensor) -> Tensor:
        scales: dict[str, Any] = {"name": LAST.get("size"), "class": self.size, "": self.own}
        output: Tensor = self.out(hidden) / scales[self.kept]
        return output


@pytest.mark.parametrize(
    ("kept", "told"),
    [
        ("name", "another module changes LAST of test_process_values.py"),
        ("class", "another module changes size of Scaled"),
        ("", None),
    ],
)
def test_what_another_module_changes_is_named(kept: str, told: str | None) -> None:
    spec = LayerSpec(name="scaled", make=lambda size: Scaled(size, kept), dtypes=("float32",))
    names = ["other_modules_change_nothing"]
    (found,) = attnbench.check(spec, profile="quick", invariants=names).outcomes
    assert found.status == ("failed" if told else "passed")
    assert (told or "") in found.reason
