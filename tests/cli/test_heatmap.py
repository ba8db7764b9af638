"""Pictures of the weights, from made and from saved inputs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli_runs import run


def test_heatmap_draws_the_weights_of_several_subjects(tmp_path: Path) -> None:
    path = tmp_path / "weights.png"
    result = run("heatmap", "additive", "scaled_dot", "-o", str(path), "--json")
    assert result.code == 0
    assert path.read_bytes().startswith(b"\x89PNG")
    weights = result.json["weights"]
    assert list(weights) == ["additive", "scaled_dot"]
    for rows in weights.values():
        assert (len(rows), len(rows[0])) == (2, 10)
        assert all(abs(sum(row) - 1) < 1e-5 for row in rows)


def test_heatmap_takes_saved_inputs_with_their_mask(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file

    mask = torch.ones(2, 3, 4, 5, dtype=torch.bool)
    mask[..., 4] = False
    tensors = {
        name: torch.randn(2, 3, n, 6) for name, n in (("query", 4), ("key", 5), ("value", 5))
    }
    save_file({**tensors, "attn_mask": mask}, tmp_path / "saved.safetensors")
    arguments = ("--inputs", str(tmp_path / "saved.safetensors"), "--item", "1,2")
    result = run("heatmap", "scaled_dot", *arguments, "-o", str(tmp_path / "x.svg"), "--json")
    assert result.code == 0
    rows = result.json["weights"]["scaled_dot"]
    assert (len(rows), len(rows[0])) == (4, 5)
    assert all(row[4] == 0.0 for row in rows)


def test_heatmap_leaves_out_a_subject_that_fails(tmp_path: Path) -> None:
    arguments = ("-o", str(tmp_path / "x.png"))
    result = run("heatmap", "scaled_dot", "bad_subjects.py:KILLS", *arguments)
    assert result.code == 3
    assert "bad_subjects.py:KILLS is left out: its process was ended by SIGKILL" in result.err
    assert "scaled_dot" in result.out


NAN_IN_ONE_ROW = """
import attnbench
import torch

class Nan(torch.nn.Module):
    def forward(self, query, key):
        scores = query @ key.mT
        return torch.cat([scores[..., :1, :] * float("nan"), scores[..., 1:, :]], -2)

NAN = attnbench.ScoringSpec(name="nan", make=lambda q, k: Nan(), equal_sizes=True)
"""


def test_nan_in_one_panel_is_said_and_leaves_the_scale_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NAN_IN_ONE_ROW)
    path = tmp_path / "x.svg"
    result = run("heatmap", f"{tmp_path}/mine.py:NAN", "scaled_dot", "-o", str(path))
    assert result.code == 0
    assert result.err == "warning: 10 of 20 weights of nan are NaN or infinite; they are grey.\n"
    scale = re.findall(r"<!-- (0\.\d+) -->", path.read_text())
    assert max(map(float, scale)) > 0.1


def test_nan_is_null_in_json(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(NAN_IN_ONE_ROW)
    result = run("heatmap", f"{tmp_path}/mine.py:NAN", "-o", str(tmp_path / "x.svg"), "--json")
    assert "NaN" not in result.out
    assert None in result.json["weights"]["nan"][0] + result.json["weights"]["nan"][1]


@pytest.mark.parametrize("panel", [[[float("nan"), 0.5]], [[float("nan")]], [[0.0, 0.0]]])
def test_a_panel_of_nan_or_of_zeros_is_drawn(panel: list[list[float]]) -> None:
    from attnbench.cli.heatmap import _picture

    assert _picture({"a": panel, "b": [[0.25, 0.5]]}, "png", "").startswith(b"\x89PNG")
    picture = _picture({"a": panel}, "svg", "").decode()
    assert "weight" in picture


@pytest.mark.parametrize("path", ["/dev/full.png", "folder.png"])
def test_a_picture_that_cannot_be_written_is_one_line_and_leaves_no_file(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "folder.png").mkdir()
    (tmp_path / "there.png").symlink_to("/dev/full")
    place = tmp_path / ("there.png" if "full" in path else path)
    result = run("heatmap", "scaled_dot", "-o", str(place))
    assert (result.code, result.out, len(result.err.splitlines())) == (2, "", 1)
    assert result.err.startswith(f"attnbench: --output {place}: ")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.png", "there.png"]
