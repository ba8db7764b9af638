import json
from pathlib import Path
from typing import Any

import pytest

from attnbench.benchmark import records as store
from attnbench.benchmark.records import SCHEMA
from attnbench.errors import RecordError
from tests.measured_records import record


def test_a_record_comes_back_from_its_line_as_it_was(tmp_path: Path) -> None:
    whole = record(
        lead=(2, 4),
        samples_s=(0.1, 0.2),
        machine={"node": "n", "cores": 2},
        inputs={"path": "ä\n.safetensors", "sha256": "0"},
    )
    store.append(tmp_path / "new" / "r.jsonl", whole)
    assert list(store.read(tmp_path / "new" / "r.jsonl")) == [whole]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"format":"attnbench-record","schema":', "line 2, is damaged"),
        ('{"benchmark": 1}', "line 2, is not a record of attnbench"),
        ("[1, 2]", "line 2, is not a record of attnbench"),
        ('{"format":"attnbench-record","schema":2}', "line 2, is damaged: .* 'run'"),
    ],
)
def test_a_damaged_or_foreign_line_is_named_by_file_and_number(
    tmp_path: Path, line: Any, complaint: Any
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(f"{record().to_json()}\n{line}\n{record().to_json()}\n")
    with pytest.raises(RecordError, match=complaint) as error:
        list(store.read(path))
    assert str(path) in str(error.value)


@pytest.mark.parametrize(("schema", "age"), [(SCHEMA + 1, "newer"), (0, "older")])
def test_a_record_of_another_version_says_which_and_what_to_do(
    tmp_path: Path, schema: Any, age: Any
) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({**json.loads(record().to_json()), "schema": schema}) + "\n")
    with pytest.raises(RecordError, match=f"attnbench that is {age}"):
        list(store.read(path))


def test_a_place_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RecordError, match=r"cannot write to .*name another folder"):
        store.append(tmp_path / "file" / "r.jsonl", record())
    with pytest.raises(RecordError, match=r"cannot write to .*name another folder"):
        store.claimed(tmp_path / "file" / "r.jsonl").__enter__()
