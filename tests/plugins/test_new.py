import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from attnbench.cli import main
from tests.cli_runs import python, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    # what other tests imported from files of their own is not installed
    monkeypatch.delitem(sys.modules, "my_scores", raising=False)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "pytest-of-" not in path])
    return tmp_path


def test_a_new_distribution_is_whole_and_names_itself_throughout(
    here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "my-scores"]) == 0
    written = {str(p.relative_to(here / "my-scores")) for p in here.rglob("*") if p.is_file()}
    assert written == {
        ".gitignore",
        "README.md",
        "asv.conf.json",
        "benchmarks/__init__.py",
        "benchmarks/suite.py",
        "my_scores/__init__.py",
        "pyproject.toml",
        "tests/test_my_scores.py",
    }
    assert 'my_scores = "my_scores"' in (here / "my-scores/pyproject.toml").read_text()
    assert not any("$" in p.read_text() for p in here.rglob("*") if p.is_file())
    assert "attnbench check my_scores" in capsys.readouterr().out


def test_the_manual_shows_the_settings_of_asv_that_are_written(here: Path) -> None:
    assert main(["new", "my-scores"]) == 0
    written = json.loads((here / "my-scores" / "asv.conf.json").read_text())
    page = (ROOT / "docs" / "howto" / "benchmark.md").read_text(encoding="utf-8")
    shown = json.loads(re.findall(r"```json\n(.*?)```", page, re.DOTALL)[0])
    written["install_command"][0] = shown["install_command"][0]  # the place of this installation
    written["matrix"]["req"]["torch"] = shown["matrix"]["req"]["torch"]
    assert shown == {name: written[name] for name in shown}


def test_a_new_layer_is_whole_and_passes_before_it_is_installed(
    here: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "my-layers", "--layer"]) == 0
    written = {str(p.relative_to(here / "my-layers")) for p in here.rglob("*") if p.is_file()}
    assert written == {
        ".gitignore",
        "README.md",
        "my_layers/__init__.py",
        "pyproject.toml",
        "tests/test_my_layers.py",
    }
    assert not any("$" in p.read_text() for p in here.rglob("*") if p.is_file())
    assert "attnbench check my_layers" in capsys.readouterr().out
    code = (
        "import attnbench;"
        "from attnbench.registry.discovery import call_hooks; import my_layers;"
        "(spec,) = call_hooks(my_layers);"
        "report = attnbench.check(spec, profile='quick');"
        "assert report.ok, str(report); print(report.counts['passed'])"
    )
    done = python("-W", "error", "-c", code, folder=here / "my-layers")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 20


def test_what_small_calls_found_of_a_class_is_written_as_a_spec_that_passes(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "block.py").write_text(
        "from torch import nn\n\n\n"
        "class Block(nn.Module):\n"
        "    def __init__(self, config):\n"
        "        super().__init__()\n"
        "        self.qkv = nn.Linear(config.n_embd, 3 * config.n_embd)\n\n"
        "    def forward(self, x):\n"
        "        query, key, value = self.qkv(x).chunk(3, -1)\n"
        "        return nn.functional.scaled_dot_product_attention(\n"
        "            query, key, value, is_causal=True\n"
        "        )\n",
        "utf-8",
    )
    assert main(["new", "--from", "block.py:Block"]) == 0
    written = (here / "block_spec.py").read_text("utf-8")
    assert "SPEC = spec_of(\n    Block," in written
    assert "# Block: causal (found by trying)" in written
    words = ["--invariant", "later_tokens_are_invisible", "--profile", "quick"]
    assert main(["check", "block_spec.py:SPEC", *words]) == 0
    capsys.readouterr()


LIBRARY = """
def attention(query, key, value, attn_mask=None, is_causal=False, scale=None):
    raise NotImplementedError("never called here")


NUMBER = 3
"""


def test_the_file_holds_the_spec_that_the_style_gives(here: Path) -> None:
    (here / "library.py").write_text(LIBRARY)
    done = run("new", "--from", "library.py:attention", "--as", "sdpa", folder=here)
    assert done.code == 0, done.err
    text = (here / "attention_spec.py").read_text()
    assert 'accepts=("is_causal", "scale")' in text
    assert '        "causal": "top_left",  # or "bottom_right", "square", "always"' in text
    assert '        # "empty_rows": "zeros",  # or "mean", "nan", "refused"' in text
    listed = run("list", "attention_spec.py:SPEC", folder=here)
    assert "attention" in listed.out, listed.err


def test_a_file_in_another_folder_finds_the_function(here: Path) -> None:
    (here / "library.py").write_text(LIBRARY)
    arguments = ("--from", "library.py:attention", "--as", "sdpa", "--into", "sub")
    done = run("new", "mine", *arguments, folder=here)
    assert done.code == 0, done.err
    listed = run("list", "sub/mine.py:SPEC", folder=here)
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
        *((("--", name), "cannot name a distribution") for name in ("my scores", "3d", "a/b", "")),
        (("torch",), "its module 'torch' is already installed"),
        (("attnbench-plugins",), "its module 'attnbench_plugins' is already installed"),
        (("json",), "'json' is a keyword or a standard module of Python"),
        (("class",), "'class' is a keyword or a standard module of Python"),
    ],
)
def test_what_cannot_be_written_is_one_line_with_exit_2(
    arguments: tuple[str, ...], told: str, here: Path
) -> None:
    (here / "library.py").write_text(LIBRARY)
    done = run("new", *arguments, folder=here)
    assert done.code == 2
    assert told in done.err
    assert "Traceback" not in done.err
    assert {path.name for path in here.iterdir()} <= {"library.py", "__pycache__"}
