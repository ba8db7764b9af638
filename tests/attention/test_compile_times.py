"""What compilers take, apart from what a cache had."""

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from attnbench.attention.compile_times import compilations, note_compiled
from tests.cli_runs import python

RECORD = """
import json, warnings, torch, attnbench
from torch import nn
from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.timing.contract import Contract
from attnbench.benchmark.measure import measure_row
from attnbench.benchmark.measure import Bench
from attnbench.subject.lookup import resolve
warnings.simplefilter("ignore")

@torch.compile
def compiled(query, key):
    return (query @ key.mT) * query.shape[-1] ** -0.5

class Compiled(nn.Module):
    def forward(self, query, key):
        return compiled(query, key)

(subject,) = resolve(attnbench.ScoringSpec(name="compiled", make=lambda q, k: Compiled()))
case = BenchCase(attnbench.Case((1,), 8, 8, 8, 8, 8))
bench = Bench(Contract(blocks=1, cap_s=0.01))
found = [measure_row(subject, case, bench).facts for _ in range(2)]
print(json.dumps([[one[n] for n in ("compiled", "compile_s", "first_call_s")] for one in found]))
"""


def measured(cache: Path) -> list[tuple[Any, ...]]:
    """Two records of a new process: their source, seconds, and first call."""
    run = python("-c", textwrap.dedent(RECORD), TORCHINDUCTOR_CACHE_DIR=str(cache))
    assert run.returncode == 0, run.stderr[-3000:]
    return [tuple(one) for one in json.loads(run.stdout.splitlines()[-1])]


@pytest.mark.long
def test_a_record_tells_compiling_from_a_cache_and_from_neither(tmp_path: Path) -> None:
    (first, made_s, first_s), (again, none_s, _) = measured(tmp_path)
    assert (first, again) == ("compiled", "")
    assert 0 < made_s <= first_s
    assert none_s == 0
    (second, loaded_s, second_s), _ = measured(tmp_path)
    assert second == "cache"
    assert 0 < loaded_s <= second_s
    assert loaded_s < made_s


def test_what_is_partly_from_a_cache_was_compiled() -> None:
    with compilations() as found:
        note_compiled(0.25, cached=True)
    assert (found.source, found.seconds) == ("cache", 0.25)
    with compilations() as found:
        note_compiled(0.25, cached=True)
        note_compiled(0.5, cached=False)
    assert (found.source, found.seconds) == ("compiled", 0.75)
    note_compiled(1.0, cached=False)  # outside of any context
    assert found.seconds == 0.75
    with compilations() as found:
        pass
    assert (found.source, found.seconds) == ("", 0)
