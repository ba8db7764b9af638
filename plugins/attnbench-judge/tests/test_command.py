"""What ``attnbench judge`` prints, of one candidate and of a folder."""

import json
from pathlib import Path
from typing import Any

import pytest
from attnbench_judge import court as judging_court
from attnbench_judge.command import command
from attnbench_judge.decision import Judgement, Row

pytestmark = pytest.mark.slow


class Strict:
    """A court in which judging one of the candidates ends in an error."""

    def __init__(self, *_: object, **__: object) -> None:
        """Whatever its limits are."""

    def __enter__(self) -> "Strict":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to end."""

    def judge(self, target: str, **_: Any) -> Judgement:
        """Accept, unless it is the bad one."""
        if Path(target).name.startswith("bad"):
            raise ValueError("\x1b[2K\nanything")
        rows = (Row("a", "ok", 1e-3, ratio=2.0, ratio_low=1.9, ratio_high=2.1),)
        if "slow" in target:
            rows += (Row("b", "waits", 1e-3, ratio=9.0, reason="it waits"),)
        return Judgement(target, "accepted", rows=rows)


def test_one_candidate_never_takes_a_folder_down(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(judging_court, "Court", Strict)
    monkeypatch.setenv("COLUMNS", "300")
    for name in ("bad", "good", "a\n\x1b[2J", "slow"):
        (tmp_path / f"{name}.py").touch()
    (tmp_path / "folder.py").mkdir()
    assert command(candidates=tmp_path, style="sdpa") == 3
    told = capsys.readouterr().out
    assert told.replace("\n", "").isprintable()
    assert "bad.py: refused (not_judged)" in told
    assert "good.py: accepted" in told
    assert "not ranked: waits at b: it waits" in told
    table = [line for line in told.splitlines() if "slow.py" in line][-1]
    assert table.split()[0] == "-"
    assert command(candidates=tmp_path, style="sdpa", as_json=True) == 3
    found = json.loads(capsys.readouterr().out)["judgements"]
    assert [Path(one["target"]).name for one in found[2:]] == ["slow.py", "bad.py"]
    with pytest.raises(ValueError, match="anything"):
        command([str(tmp_path / "bad.py")], style="sdpa")
