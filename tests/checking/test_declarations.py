"""What a report offers where a failure is by design."""

from __future__ import annotations

from pathlib import Path

from attnbench.checking.declarations import declaration
from attnbench.subject.lookup import resolve


def test_a_function_without_a_spec_is_told_what_a_command_takes(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def attention(query, key, value, attn_mask=None):\n"
        "    return (query @ key.mT).softmax(-1) @ value\n"
    )
    (subject,) = resolve(f"{file}:attention as sdpa")
    assert (
        declaration(subject, "finite_at_extremes") == '--exempt "finite_at_extremes=why" skips it'
    )
    told = "the convention empty_rows says so (--convention empty_rows=VALUE; attnbench probe finds"
    assert declaration(subject, "empty_rows_give_zeros").startswith(told)
    (named,) = resolve("scaled_dot")
    spec = 'exempt={"finite_at_extremes": "why"} in the spec skips it'
    assert declaration(named, "finite_at_extremes") == spec
