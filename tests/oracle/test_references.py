from __future__ import annotations

from typing import Any

import torch
from attnbench_zoo.right.attention import ATTENTION
from torch import Tensor, nn

from attnbench import Case, ScoringSpec
from attnbench.oracle.references import Reference
from attnbench.subject.lookup import resolve
from attnbench.subject.subject import Subject

SMALL = Case((2,), 3, 5, 4, 4, 4)


def _subject(target: Any) -> Subject:
    (subject,) = resolve(target)
    return subject


def _reference(target: Any, case: Case) -> Reference:
    subject = _subject(target)
    module, inputs = subject.build(subject.legal(case))
    return Reference(subject, module, inputs)


def test_rows_are_few_and_hold_the_first_and_the_last() -> None:
    reference = _reference("dot", Case((3,), 40, 16, 4, 4, 4))
    rows = reference.rows(64)
    assert len(rows) == 4
    assert (rows[0], rows[-1]) == ((0, 0), (2, 39))
    assert len(reference.rows()) == 120


def test_of_long_rows_the_last_is_taken_alone() -> None:
    reference = _reference("dot", SMALL.replace(kv_len=257))
    assert reference.rows(16) == [(1, 2)]
    assert len(reference.rows(64)) == 2


def test_of_a_mechanism_whole_items_are_taken_the_last_one_always() -> None:
    reference = _reference("soft", SMALL.replace(lead=(2, 3)))
    assert reference.rows(16) == [(5, 0), (5, 1), (5, 2)]
    assert {item for item, _ in reference.rows(64)} == {0, 2, 3, 5}
    assert len(reference.rows()) == 18


def test_rows_by_the_scalar_reference_take_the_place_of_those_in_float64() -> None:
    reference = _reference("scaled_dot", Case((3,), 7, 5, 4, 4, 4))
    mixed = reference.with_scalar([(0, 0), (1, 6), (2, 3)])
    torch.testing.assert_close(mixed, reference.output, atol=1e-12, rtol=0)
    assert torch.equal(mixed[0, 1:], reference.output[0, 1:])


def test_a_mechanism_without_a_reference_has_none_and_with_a_bias_neither() -> None:
    assert not _reference(ATTENTION, SMALL.replace(mask="bias")).has_scalar
    assert _reference(ATTENTION, SMALL.replace(mask="boolean")).has_scalar


class Dot(nn.Module):
    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT


def test_vectors_of_a_reference_may_be_called_like_positions() -> None:
    def dot(module: Any, i: list[float], j: list[float]) -> float:
        return sum(a * b for a, b in zip(i, j, strict=True))

    spec = ScoringSpec(name="d", make=lambda q, k: Dot(), equal_sizes=True, reference=dot)
    (subject,) = resolve(spec)
    module, inputs = subject.build(Case((1,), 2, 3, 4, 4, 4))
    reference = Reference(subject, module, inputs)
    assert torch.allclose(reference.scalar(reference.rows()).double(), reference.output)
