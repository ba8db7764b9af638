from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.mutants.dropout import BackwardDropsOthers, NoDropoutWhenCausal
from attnbench_zoo.mutants.state import FactorsKeptFromInference
from attnbench_zoo.right.scorings import SPECS
from attnbench_zoo.twins.attention import Attention
from torch import Tensor, nn

from attnbench.adapters import sdpa
from attnbench.cases.case import Case
from attnbench.checking.plan import select_invariants
from attnbench.checking.runner import seeded
from attnbench.errors import InvariantViolation
from attnbench.invariants import dropout
from attnbench.invariants.calls import copies, execution, layouts
from attnbench.subject.lookup import resolve
from tests.invariant_runs import assert_tells_apart, by_name, mutant, run

INVARIANTS = by_name(execution, layouts, dropout, copies)


class QueryScaledInPlace(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        with torch.no_grad():
            query.mul_(0.5)
        return scores


class WritesBesideTheValue(Attention):
    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage())[0] ^= 1
        return super().silence_value(value, allowed)


class MaskCachedByShape(Attention):
    def mask(self, query: Tensor, key: Tensor, *masks: Any) -> tuple[Tensor, Tensor]:
        cache: dict[Any, tuple[Tensor, Tensor]] = self.__dict__.setdefault("cache", {})
        place = query.shape, key.shape
        if place not in cache:
            cache[place] = super().mask(query, key, *masks)
        return cache[place]


class CallsCounted(Attention):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("calls", torch.zeros(()))

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        assert isinstance(self.calls, Tensor)
        self.calls += 1
        return super().pool(weights, value)


class ReadsMemoryInOrder(Attention):
    def silence_value(self, value: Tensor, allowed: Tensor) -> Tensor:
        if not value.is_contiguous() and value.mT.is_contiguous():
            value = value.mT.reshape(value.shape)
        return super().silence_value(value, allowed)


class _ReadInOrder(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        return output.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        first = torch.as_strided(grad, (1,), (1,), grad.storage_offset())
        return grad if grad.is_contiguous() else first.expand(grad.shape)


class GradientReadInOrder(Attention):
    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        output: Tensor = _ReadInOrder.apply(super().pool(weights, value))
        return output


class FastPathWithoutScale(Attention):
    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return super().scale(query, key, given) if torch.is_grad_enabled() else 1.0


class TrainingWithoutScale(Attention):
    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0 if self.training else super().scale(query, key, given)


class DropsInEvaluation(Attention):
    def drop(self, weights: Tensor, dropout_p: float) -> Tensor:
        return nn.functional.dropout(weights, dropout_p)


class OutputOfHalfTheWeights(Attention):
    def forward(self, *args: Any, return_weights: bool = False, **given: Any) -> Any:
        found = super().forward(*args, return_weights=return_weights, **given)
        return (found[0] / 2, found[1]) if return_weights else found


class WeightsAfterDropout(Attention):
    def forward(self, *args: Any, dropout_p: float = 0.0, **keywords: Any) -> Any:
        self.dropout_p = dropout_p
        return super().forward(*args, **keywords)

    def normalise(self, hidden: Tensor, allowed: Tensor) -> Tensor:
        return self.drop(super().normalise(hidden, allowed), self.dropout_p)


class TemperatureNotInTheState(Attention):
    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.temperature = float(torch.rand(()))

    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return self.temperature


MUTANTS = {
    "inputs_are_unchanged": QueryScaledInPlace,
    "calls_leave_no_trace": MaskCachedByShape,
    "layouts_agree": ReadsMemoryInOrder,
    "gradient_layouts_agree": GradientReadInOrder,
    "gradient_modes_agree": FastPathWithoutScale,
    "training_equals_evaluation": TrainingWithoutScale,
    "no_dropout_in_evaluation": DropsInEvaluation,
    "weights_are_those_before_dropout": WeightsAfterDropout,
    "asking_for_weights_changes_nothing": OutputOfHalfTheWeights,
    "copies_agree": TemperatureNotInTheState,
    "gradients_are_right_with_dropout": BackwardDropsOthers,
    "every_call_drops_weights": NoDropoutWhenCausal,
}


@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_passes_the_right_attention_and_fails_its_mutant(name: str) -> None:
    assert_tells_apart(INVARIANTS[name], MUTANTS[name])


def test_every_invariant_on_execution_has_a_mutant_here() -> None:
    assert set(INVARIANTS) == set(MUTANTS)


def test_a_changed_input_is_named_with_both_of_its_values() -> None:
    wrong = run(mutant(QueryScaledInPlace), INVARIANTS["inputs_are_unchanged"])
    assert "query[" in wrong.reason
    assert "as before it: the caller's tensor was changed in place" in wrong.reason


class OpensEmptyRows(Attention):
    """Rows without keys are opened in the caller's mask, before a softmax."""

    def forward(self, *args: Any, **keywords: Any) -> Any:
        mask = keywords.get("attn_mask")
        if mask is not None and mask.dtype == torch.bool:
            mask |= ~mask.any(-1, keepdim=True)
        return super().forward(*args, **keywords)


def test_a_mask_that_only_rows_without_keys_change_is_found() -> None:
    wrong = run(mutant(OpensEmptyRows), INVARIANTS["inputs_are_unchanged"])
    assert "attn_mask[" in wrong.reason


def test_memory_beside_a_view_counts_as_the_callers_too() -> None:
    wrong = run(mutant(WritesBesideTheValue), INVARIANTS["inputs_are_unchanged"])
    assert wrong.status == "failed"


def test_a_state_that_calls_change_is_found() -> None:
    wrong = run(mutant(CallsCounted), INVARIANTS["calls_leave_no_trace"])
    assert "state_dict()['calls'] was changed" in wrong.reason


def test_a_module_that_cannot_be_copied_is_told_in_one_sentence() -> None:
    class Unpicklable(Attention):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("no copies of this")

    wrong = run(mutant(Unpicklable), INVARIANTS["copies_agree"])
    assert "deepcopy of the module raised TypeError: no copies of this" in wrong.reason


def test_what_is_random_in_training_is_not_compared_with_evaluation() -> None:
    class Sampled(Attention):
        def hide(self, scores: Tensor, allowed: Tensor) -> Tensor:
            noise = torch.rand_like(scores) if self.training else torch.zeros_like(scores)
            return super().hide(scores + noise, allowed)

    class Noisy(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            output = super().pool(weights, value)
            return output + torch.rand_like(output) if self.training else output

    class SeldomDropped(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            return super().pool(nn.functional.dropout(weights, 1e-3, self.training), value)

    assert run(mutant(Sampled), INVARIANTS["training_equals_evaluation"]).status != "failed"
    for random in (Noisy, SeldomDropped):
        outcome = run(mutant(random), INVARIANTS["training_equals_evaluation"])
        assert outcome.status == "skipped", outcome.reason
        assert outcome.reason.endswith("in training it is random")


def test_a_state_that_a_call_adds_to_is_found_and_is_the_subjects_fault() -> None:
    class TableMadeByTheFirstCall(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            if not hasattr(self, "table"):
                self.register_buffer("table", torch.ones(()))
            return super().pool(weights, value)

    wrong = run(mutant(TableMadeByTheFirstCall), INVARIANTS["calls_leave_no_trace"])
    assert wrong.status == "failed"
    assert "took from it, table" in wrong.reason


def test_what_is_kept_of_inference_mode_is_told_with_the_call_that_came_before() -> None:
    wrong = run(mutant(FactorsKeptFromInference), INVARIANTS["gradient_modes_agree"])
    assert wrong.status == "failed"
    assert wrong.reason.startswith("after a call under inference_mode, the same call outside")


@pytest.mark.parametrize(
    "case",
    [
        "b1x3-L59-S30-Eq1-Ek1-Ev17-float64-cpu-boolean-transposed-normal-s685",
        "b0d-L9-S40-Eq1-Ek1-Ev1-float64-cpu-none-strided-normal-s314",
    ],
)
def test_gradients_whose_terms_cancel_may_round_by_those_terms(case: str) -> None:
    (cosine,) = resolve(SPECS["cosine"])
    found = Case.from_id(f"{case}+gradient=transposed+of=scores")
    with seeded():  # of single numbers, the cosine is a sign, and its gradient should be 0
        INVARIANTS["gradient_layouts_agree"].check(cosine, found)


def by_strides(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Memory is read by strides, as a kernel does; the gradient of a leaf whose items share memory
    is then the mean of theirs.
    """
    tensors = (t.as_strided(t.shape, t.stride(), t.storage_offset()) for t in (query, key, value))
    return nn.functional.scaled_dot_product_attention(*tensors)


def value_as_if_contiguous(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    steps = torch.empty(value.shape).stride()
    return by_strides(query, key, value.as_strided(value.shape, steps, value.storage_offset()))


def value_beside_those_alike(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """It refuses inputs that do not all lie in memory in order, or all in another one."""
    if query.is_contiguous() != value.is_contiguous():
        raise ValueError("other strides than those of the query")
    return value_as_if_contiguous(query, key, value)


def test_what_refuses_different_layouts_is_still_told_that_it_depends_on_them() -> None:
    (wrong,) = resolve(sdpa(value_beside_those_alike))
    case = Case((3,), 2, 3, 4, 4, 4, layout="transposed")
    with pytest.raises(InvariantViolation, match="with transposed query, key and value, output"):
        INVARIANTS["layouts_agree"].check(wrong, case)


def test_what_depends_on_the_layout_of_one_input_is_found() -> None:
    (right,), (wrong,) = map(resolve, (sdpa(by_strides), sdpa(value_as_if_contiguous)))
    shared = Case((3,), 2, 3, 4, 4, 4, layout="expanded").tried(gradient="transposed", of="output")
    INVARIANTS["gradient_layouts_agree"].check(right, shared)
    for name, layout in (("layouts_agree", "transposed"), ("keeps_the_contract", "offset")):
        (invariant,) = select_invariants([name])
        case = Case((3,), 2, 3, 4, 4, 4, layout=layout)
        invariant.check(right, case)
        with pytest.raises(InvariantViolation):
            invariant.check(wrong, case)
