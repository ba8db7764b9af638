"""The order of a trial."""

from pathlib import Path

import pytest
from attnbench_judge.court import Court
from attnbench_judge.entry import Limits

pytestmark = pytest.mark.slow


SOURCE = """
from torch.nn.functional import scaled_dot_product_attention as fused
calls = [0]


def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    calls[0] += 1
    output = fused(query, key, value, attn_mask, is_causal=is_causal, scale=scale)
    return output * (calls[0] < 900 or calls[0] > 1400 or key.shape[-2] < 48)
"""


def test_what_is_wrong_while_invariants_run_at_short_lengths_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text(SOURCE)
    with Court(Limits(), lengths=(256,)) as court:
        found = court.judge(str(file), style="sdpa", seed=1)
    assert found.refusal == "depends_on_history", (found.verdict, found.sentence)
    assert any(outcome.status == "passed" for outcome in found.outcomes)
