import sys
from typing import Any

import pytest
import torch

from attnbench.benchmark.memory import is_out_of_memory, peak_bytes
from tests.cli_runs import python

CPU = torch.device("cpu")
MIB = 2**20


OWN = """
import numpy as np
import torch
from attnbench.benchmark.memory import peak_bytes

held = torch.zeros(2**18)


def call():
    own = np.ones(24 * 2**20, dtype=np.uint8)
    return held + float(own[-1])


call()
print(peak_bytes(call, torch.device("cpu")))
"""


def mebibytes(count: Any) -> Any:
    return torch.zeros(count * MIB // 4)


def test_the_peak_of_a_known_sequence_of_tensors_is_exact() -> None:
    def call() -> Any:
        first = mebibytes(3)
        second = mebibytes(5)  # 8 MiB alive
        del first
        third = mebibytes(2)  # 7 MiB alive
        del second
        return third

    assert peak_bytes(call, CPU) == 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is Linux's to tell")
def test_what_a_loop_allocates_itself_counts() -> None:
    done = python("-c", OWN)  # elsewhere other tests' freed memory would be reused
    assert int(done.stdout) == pytest.approx(25 * MIB, rel=0.1)


def test_only_errors_about_memory_are_out_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("sizes do not fit"))
    assert not is_out_of_memory(ValueError("out of memory"))
