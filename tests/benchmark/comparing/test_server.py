"""The driver of slots: what a side is called with, and a side that cannot be started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from torch import Tensor

import attnbench
from attnbench.benchmark.comparing import sides
from attnbench.benchmark.comparing.exchange import Exchange
from attnbench.benchmark.comparing.server import Prepared
from attnbench.benchmark.comparing.sides import Side
from attnbench.errors import UsageError
from attnbench.saved_inputs import save_inputs

MECHANISM = """\
import attnbench
import torch


class Plain(torch.nn.Module):
    def forward(self, query, key, value, attn_mask=None{keywords}):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)


SPEC = attnbench.MechanismSpec(name="plain", make=lambda q, k, v: Plain())
"""


def row(folder: Path, inputs: Path) -> dict[str, Any]:
    return {
        "address": f"{folder / 'plain.py'}:SPEC",
        "inputs": str(inputs),
        "device": "cpu",
        "seed": 0,
        "direction": "forward",
    }


@pytest.mark.parametrize("lead", [(2,), (2, 3)])
@pytest.mark.parametrize(
    "mask",
    [
        {},
        {"is_causal": True},
        {"valid_lens": torch.tensor([2, 5])},
        {"valid_lens": torch.tensor([[1, 2, 3], [4, 5, 3]]), "is_causal": True},
        {"valid_lens": torch.tensor([2, 5]), "attn_mask": torch.rand(3, 5) < 0.9},
        {"valid_lens": torch.tensor([2, 5]), "attn_mask": torch.rand(3, 5)},
    ],
    ids=lambda mask: "+".join(mask) or "none",
)
def test_a_mechanism_without_keywords_gets_them_as_a_mask(
    tmp_path: Path, lead: tuple[int, ...], mask: dict[str, Any]
) -> None:
    (tmp_path / "plain.py").write_text(MECHANISM.format(keywords=""))
    if "attn_mask" in mask and mask["attn_mask"].dtype == torch.bool:
        mask = {**mask, "attn_mask": mask["attn_mask"] | (torch.arange(5) < 1)}
    query, key = torch.randn(*lead, 3, 4), torch.randn(*lead, 5, 4)
    path = tmp_path / "inputs.safetensors"
    save_inputs(path, query, key, key, **mask)
    subject = Prepared(row(tmp_path, path))
    expected = attnbench.attend("scaled_dot", query, key, key, kernel="plain", **mask)
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(subject.subject.output(subject.module, subject.inputs), expected)


DRIFTING = """\
import attnbench
import torch


class Plain(torch.nn.Module):
    timed = False

    def forward(self, query, key, value, attn_mask=None):
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask)
        return found * 0 if self.timed else found


SPEC = attnbench.MechanismSpec(name="plain", make=lambda q, k, v: Plain())
"""


@pytest.mark.parametrize("direction", ["forward", "forward_backward"])
def test_what_a_side_gave_while_it_was_timed_is_compared_with_the_other_side(
    tmp_path: Path, direction: str
) -> None:
    inputs, answer = tmp_path / "inputs.safetensors", str(tmp_path / "answer.pt")
    save_inputs(inputs, *torch.randn(3, 2, 16, 4))
    reasons = []
    texts = {"drifting": DRIFTING, "right": MECHANISM.format(keywords="")}
    for name, text in texts.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "plain.py").write_text(text)
    for first in texts:
        ours, other = (
            Prepared({**row(tmp_path / name, inputs), "direction": direction})
            for name in (first, "right")
        )
        ours.warm_up(1e-3, 1.0)
        vars(ours.module)["timed"] = True
        for _ in range(4):
            ours.timer.slot()
        assert ours.answer(answer, timed=True) == {"fault": ""}
        reasons.append(other.same(answer)["reason"])
    assert "its output differs by up to" in reasons[0]
    assert reasons[1] == ""


def test_a_plugin_that_hangs_at_import_is_one_error_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sides, "_START_S", 0.5)
    hanging = tmp_path / "server.py"
    hanging.write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setattr(sides, "_SERVER", (str(hanging),))
    side = Side("here", tmp_path)
    with pytest.raises(UsageError, match=r"here was not imported within 0\.5 s"):
        Exchange((side, side)).__enter__()
    running = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not [line for line in running if str(hanging) in line]
