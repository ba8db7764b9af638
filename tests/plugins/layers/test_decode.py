"""The table of prefill and decode: what a row holds, and what is refused."""

from __future__ import annotations

import pytest
import torch
from attnbench_plugins.layers import causal, encoder, static

from benchmarks.decode import in_turn, measured

(CAUSAL,) = causal.attnbench_layers()
(ENCODER,) = encoder.attnbench_layers()
(STATIC,) = static.attnbench_layers()


@torch.inference_mode()
def test_a_row_has_speeds_the_bytes_of_a_token_and_the_gain_of_keeping_them() -> None:
    name, batch, length, prefill, decode, held, gain = measured(CAUSAL, 16, 2, again=True)
    assert (name, batch, length) == ("causal_attention", "2", "16")
    assert held == "256"  # keys and values of 2 heads of 16 features in 4 bytes
    assert all(int(number.replace(",", "")) > 0 for number in (prefill, decode))
    assert float(gain.replace(",", "")) >= 0


def test_what_has_no_cache_or_too_small_a_one_is_refused() -> None:
    with pytest.raises(SystemExit, match="encoder_attention has no cache"):
        measured(ENCODER, 4, 1, again=False)
    with pytest.raises(SystemExit, match="static_attention holds 64 tokens, fewer than 64 and one"):
        measured(STATIC, 64, 1, again=False)


def test_calls_are_taken_in_turn() -> None:
    seen: list[str] = []
    in_turn(lambda: seen.append("a"), lambda: seen.append("b"))
    assert seen[:6] == ["a", "b"] * 3
