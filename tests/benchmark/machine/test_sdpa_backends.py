"""Backends of torch's attention, held to float64."""

from __future__ import annotations

import pytest

from attnbench.benchmark.machine import sdpa_backends


def test_a_backend_that_is_wrong_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    right = sdpa_backends._attend

    def attend(name: str, inputs: object) -> object:
        return right(name, inputs) * (1.01 if name == "flash" else 1.0)

    monkeypatch.setattr(sdpa_backends, "_attend", attend)
    rows = sdpa_backends.backend_rows((1, 2, 16, 8), ["float32"])
    assert {row["backend"]: row["agrees"] for row in rows if row["works"]}["flash"] is False
