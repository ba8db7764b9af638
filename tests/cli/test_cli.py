"""The command line as a whole: exit codes, help, and one clear message for each misuse."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import attnbench
from attnbench import cli
from attnbench.cli.options import exit_code
from attnbench.distributions import COMMAND_GROUP, entry_points
from tests.cli_runs import HERE, python, run


@pytest.mark.parametrize(
    ("statuses", "plugin", "code"),
    [
        ((), "ok", 0),
        (("passed", "skipped", "same", "faster"), "ok", 0),
        (("passed", "inconclusive"), "ok", 4),
        (("ambiguous",), "ok", 4),
        (("inconclusive", "failed"), "ok", 1),
        (("slower", "ambiguous"), "ok", 1),
        (("failed", "timeout"), "ok", 3),
        (("failed", "crashed"), "ok", 3),
        (("error",), "ok", 3),
        (("failed",), "failed", 3),
    ],
)
def test_the_exit_code_is_the_first_that_applies(
    statuses: tuple[str, ...], plugin: str, code: int
) -> None:
    assert exit_code(statuses, [{"status": "ok"}, {"status": plugin}]) == code


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from attnbench.cli import main; main(['--help']);"
        "print([m for m in ('torch', 'pandas', 'hypothesis', 'matplotlib') if m in sys.modules])"
    )
    text = python("-c", code).stdout
    assert text.splitlines()[-1] == "[]"
    for command in (*cli.COMMANDS, *entry_points(COMMAND_GROUP)):
        assert f" {command} " in text


def test_a_command_that_is_not_installed_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cli, "entry_points", lambda group: {})
    result = run("heatmap", "scaled_dot")
    assert result.code == 2
    assert result.err.splitlines() == [
        "attnbench: attnbench has no command 'heatmap'. It is part of attnbench-classroom: "
        "pip install ./plugins/attnbench-classroom in the repository."
    ]


def test_a_command_that_cannot_be_imported_is_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = EntryPoint("mine", "no_such_module:command", COMMAND_GROUP)
    monkeypatch.setattr(cli, "entry_points", lambda group: {"mine": broken})
    assert " mine " in run("--help").out
    result = run("mine")
    assert result.code == 3
    assert "ModuleNotFoundError: No module named 'no_such_module'" in result.err
    assert "Traceback" not in result.err


def test_a_name_that_is_not_installed_is_named_with_its_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("attnbench.distributions.entry_points", lambda group: {})
    with pytest.raises(AttributeError, match=r"install \./plugins/attnbench-answers"):
        attnbench.drift  # noqa: B018  # the access is what raises


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["chek"], "Did you mean 'check'"),
        (["check", "--profil", "quick"], "No such option"),
        (["check", "--jobs", "many"], "Invalid value for '-j'"),
        (["check", "scaled_dt"], "Did you mean 'scaled_dot'"),
        (["check", "scaled_dot(x=1)"], "has no option 'x'"),
        (["check", "scaled_dot(x="], "cannot read the address"),
        (["check", "no_such_file.py:SPEC"], "there is no file 'no_such_file.py'"),
        (["check", f"{HERE}/bad_subjects.py:RIHGT"], "Did you mean 'RIGHT'"),
        (["check", "scaled_dot", "--invariant", "weight_sum"], "Did you mean 'weights_sum_to_one'"),
        (["check", "scaled_dot", "--profile", "quik"], "Did you mean 'quick'"),
        (["check", "scaled_dot", "--dtype", "float3"], "Did you mean 'float32'"),
        (["check", "scaled_dot", "--device", "warp"], "no device 'warp'"),
        (["check", "scaled_dot", "--format", "junit=no/x.xml"], "No such file or directory"),
        (["check", "scaled_dot", "--format", "sarrif"], "Did you mean 'sarif'"),
        (["check", "scaled_dot", "--format", "github=x"], "no format for a file is called"),
        (["check", "dot", "--format", "sarif", "--json"], "cannot both be printed"),
        (["list", "scaled_dt"], "Did you mean 'scaled_dot'"),
        (["check", "f.py:f as sdpa", "--call", "f"], "--call f: it is no call"),
        (["check", "f.py:f as sdpa(q=query)", "--call", "f(q=query)"], "describes the call alr"),
        (["check", "dot", "--exempt", "unit_varance=why"], "Did you mean 'unit_variance'"),
        (["check", "dot", "--exempt", "unit_variance"], "unit_variance: write NAME=REASON"),
        (["check", "dot", "--exempt", "unit_variance="], "unit_variance=: write NAME=REASON"),
        (["list", "--case", "tiny"], "is not the id of a case"),
        (["list", "--load"], "--load imports the plugins of --plugins"),
        (["list", "--plugins", "--machine"], "are separate lists"),
        (["list", "--machine", "soft"], "but soft is named, too"),
        (["bench", "--set", "smok"], "Did you mean 'smoke'?"),
        (["bench", "--workload", "bert"], "Did you mean 'bert_base'?"),
        (["bench", "--dtype", "float23"], "no dtype is called 'float23'"),
        (["bench", "--cache", "lukewarm"], "no cache state is called 'lukewarm'"),
        (["bench", "--inputs", "absent.safetensors"], "absent.safetensors' (looked at "),
        (["bench", "--inputs", "damaged.safetensors"], "not a whole safetensors file"),
        (["bench", "--device", "gpu"], "no device 'gpu' here"),
        (["bench", "rotary_attention", "--timing", "device"], "but the devices are cpu; omit it"),
        (["bench", "multi_head(scoring=additve)", "--set", "smoke"], "'additive'"),
        (["run", "dot", "multi_head(scoring=additve)"], "'additive'"),
        (["bench", "dot", "--results", "damaged.safetensors"], "cannot write to"),
        (["bench", "dot", "--run", "../up"], "names a file"),
    ],
    ids=lambda value: " ".join(value).replace(str(HERE), "") if isinstance(value, list) else "",
)
def test_wrong_usage_is_one_message_and_exit_code_2(
    arguments: list[str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "damaged.safetensors").write_bytes(b"hello")
    result = run(*arguments, folder=tmp_path)
    assert result.code == 2
    assert message in " ".join(result.err.replace("│", " ").split())
    assert "Traceback" not in result.err
    assert result.out == ""
    assert not [*tmp_path.glob("results/**/*.jsonl")]


@pytest.mark.parametrize("command", cli._GONE["commands"])
def test_a_command_that_went_is_one_line_that_says_what_to_use(command: str) -> None:
    result = run(command, "--json")
    (line,) = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    assert line.startswith(f"attnbench: attnbench has no command {command!r}. ")
    assert "'attnbench " in line


@pytest.mark.parametrize(
    ("command", "option"),
    [(name, option) for name in cli.COMMANDS for option in cli._GONE["options"].get(name, ())],
)
def test_an_option_that_went_is_one_line_that_says_what_to_use(command: str, option: str) -> None:
    result = run(command, f"{option}=1")
    (line,) = result.err.splitlines()
    assert (result.code, result.out) == (2, "")
    assert line.startswith(f"attnbench: 'attnbench {command}' has no option {option}. ")


@pytest.mark.parametrize("command", [("list",), ("check", "dot"), ("bench", "dot")])
def test_a_torch_below_the_lowest_is_one_line(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "torch-2.3.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.3.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    result = run(*command)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "2.3.0 is installed: pip install 'torch<" in result.err
