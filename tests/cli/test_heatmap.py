"""Pictures of the weights, from made and from saved inputs."""

from __future__ import annotations

from pathlib import Path

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
