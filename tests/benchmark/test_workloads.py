from typing import Any

import pytest

from attnbench.benchmark.bench_case import BenchCase
from attnbench.benchmark.timing.contract import CACHES, Contract
from attnbench.benchmark.workloads import Selection, set_names
from attnbench.cases.case import Case
from attnbench.subject.lookup import resolve
from attnbench.subject.tensors import make_inputs


@pytest.mark.parametrize("name", set_names())
def test_the_cases_of_a_set_are_legal_and_each_has_an_id_of_its_own(name: Any) -> None:
    cases = Selection(name).cases(("cpu", "cuda"), layers=True)
    assert len({case.id for case in cases}) == len(cases)
    assert all(case.case.legal() == case.case for case in cases)
    assert {case.case.device for case in cases} == {"cpu", "cuda"}


def test_grouped_heads_share_keys_and_agree_with_repeated_ones() -> None:
    (subject,) = resolve("scaled_dot")
    case = BenchCase(Case((1, 6), 3, 4, 8, 8, 8), kv_heads=2)
    module, inputs = case.build(subject)
    assert inputs.key.shape == (1, 2, 4, 8)
    whole = inputs.replace(
        key=inputs.key.repeat_interleave(3, 1),
        value=inputs.value.repeat_interleave(3, 1),
        enable_gqa=False,
    )
    assert subject.output(module, inputs).equal(subject.output(module, whole))
    assert case.id.endswith("-kv2")


def test_a_length_is_measured_with_attention_and_with_layers() -> None:
    selection = Selection(lengths=[96, 4096], dtypes=["bfloat16"])
    cases = selection.cases(layers=True)
    assert [(case.direction, case.case.kv_len) for case in cases] == [
        ("forward", 96),
        ("forward", 4096),
        ("prefill", 96),
        ("prefill", 4096),
        ("decode", 96),
        ("decode", 4096),
    ]
    assert {case.case.dtype for case in cases} == {"bfloat16"}
    assert [case for case in cases if not case.of_layers] == selection.cases()


def test_a_contract_says_all_that_makes_numbers_comparable() -> None:
    names = {
        Contract(cache=cache, threads=threads).name(direction, device)
        for cache in CACHES
        for threads in (1, 2)
        for direction in ("forward", "forward_backward")
        for device in ("cpu", "cuda")
    }
    assert len(names) == 16
    assert Contract().name("forward", "cuda:0") == Contract().name("forward", "cuda:1")
    assert Contract(slot_s=0.01).name("forward", "cpu") not in names


def test_the_reason_against_a_subject_names_what_it_needs() -> None:
    (dot,) = resolve("scaled_dot")
    odd = BenchCase(Case(query_size=4, key_size=8))
    assert "the nearest have key_size = 4, not 8" in odd.reason_against(dot)
    assert BenchCase(Case()).reason_against(dot) is None
    assert make_inputs(odd.case).key.shape[-1] == 8
