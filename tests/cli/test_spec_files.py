"""``attnbench new --from``: the spec of a function, written out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli_runs import run

LIBRARY = """
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    raise NotImplementedError("never called here")


NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "library.py").write_text(LIBRARY)
    return tmp_path


def test_the_file_holds_the_spec_that_the_style_gives(folder: Path) -> None:
    done = run("new", "--from", "library.py:attention", "--as", "sdpa", folder=folder)
    assert done.code == 0, done.err
    text = (folder / "attention_spec.py").read_text()
    assert 'accepts=("is_causal", "scale")' in text
    assert '        "causal": "top_left",  # or "bottom_right", "square", "always"' in text
    assert '        # "empty_rows": "zeros",  # or "mean", "nan", "refused"' in text
    listed = run("list", "attention_spec.py:SPEC", folder=folder)
    assert "attention" in listed.out, listed.err


def test_a_file_in_another_folder_finds_the_function(folder: Path) -> None:
    arguments = ("--from", "library.py:attention", "--as", "sdpa", "--into", "sub")
    done = run("new", "mine", *arguments, folder=folder)
    assert done.code == 0, done.err
    listed = run("list", "sub/mine.py:SPEC", folder=folder)
    assert "attention" in listed.out, listed.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--from", "library.py:attention"), "cannot be called: of"),
        (("--from", "library.py:attention", "--as", "multihead"), "Its arguments fit sdpa on"),
        (("--from", "library.py:NUMBER", "--as", "sdpa"), "not callable"),
        (("--from", "library.py:atention", "--as", "sdpa"), "no attribute 'atention'"),
        (("--from", "scaled_dot"), "is declared already"),
        (("library", "--from", "library.py:attention", "--as", "sdpa"), "already exists"),
        (("--as", "sdpa"), "add --from"),
        ((), "name the distribution"),
    ],
)
def test_what_cannot_be_written_is_one_line_with_exit_2(
    arguments: tuple[str, ...], told: str, folder: Path
) -> None:
    done = run("new", *arguments, folder=folder)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err
