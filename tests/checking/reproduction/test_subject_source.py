"""How a script reaches the code of a subject."""

from __future__ import annotations

from pathlib import Path

import pytest

import attnbench


@pytest.mark.parametrize(
    ("name", "module"), [("overflows", "overflows"), ("01_overflows", "file_01_overflows")]
)
def test_a_function_without_a_spec_gets_a_script_that_keeps_its_values(
    name: str, module: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.py"
    file.write_text(
        "def attention(query, key, value):\n"
        "    return (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value\n"
    )
    names = ["finite_at_extremes"]
    report = attnbench.check(f"{file}:attention as sdpa", profile="quick", invariants=names)
    (outcome,) = report.of("failed")
    assert outcome.failure is not None
    script = outcome.failure.script or ""
    assert f"module = sdpa({module}.attention).make(" in script
    assert [line[:11] for line in script.splitlines() if line.startswith("value = ")] == [
        "value = t5."
    ]
    assert 'by design? --exempt "finite_at_extremes=why" skips it' in str(report)
