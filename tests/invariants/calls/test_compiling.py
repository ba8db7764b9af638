from __future__ import annotations

from typing import Any

import pytest
import torch
from attnbench_zoo.twins.attention import ATTENTION, Attention
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import attnbench
from attnbench.checking.profiles import PROFILES, current_profile
from attnbench.checking.runner import run_invariant, seeded
from attnbench.invariants.calls import autocast, compiling
from attnbench.subject.lookup import resolve
from tests.invariant_runs import assert_tells_apart, by_name, mutant, run

INVARIANTS = {**by_name(autocast), **by_name(compiling)}


class WrongWhenCompiled(Attention):
    def scale(self, query: Tensor, key: Tensor, given: float | None) -> float:
        return 1.0 if torch.compiler.is_compiling() else super().scale(query, key, given)


class ValuesLookedAt(Attention):
    """A branch on values: what neither export nor vmap nor fake tensors can follow."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value if float(value.sum()) > -1e9 else -value)


class FixedBatch(Attention):
    """Under vmap the leading size is gone, and the items are mixed."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        wrapped = torch._C._functorch.is_functorch_wrapped_tensor(value)
        return super().pool(weights, value.flip(-2) if wrapped else value)


class ScoresInFloat32OnlyOutside(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        scores = super().scores(query, key, scale)
        return 2 * scores if torch.is_autocast_enabled("cpu") else scores


MUTANTS = {
    "compiled_equals_eager": WrongWhenCompiled,
    "vmap_equals_batch": FixedBatch,
    "fake_tensors_tell_the_shape": ValuesLookedAt,
    "autocast_agrees": ScoresInFloat32OnlyOutside,
}


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("name", MUTANTS)
def test_an_invariant_passes_the_right_attention_and_fails_its_mutant(name: str) -> None:
    assert_tells_apart(INVARIANTS[name], MUTANTS[name])


def test_every_invariant_on_transformations_has_a_mutant_here() -> None:
    assert set(INVARIANTS) == set(MUTANTS)


def test_what_a_subject_keeps_of_an_export_is_no_fault_of_the_invariant() -> None:
    class Remembers(Attention):
        last: Tensor | None = None

        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            output = super().pool(weights, value)
            if self.last is not None and self.last.shape == output.shape:
                output = output + 0 * self.last
            self.last = output
            return output

    for name in ("fake_tensors_tell_the_shape", "vmap_equals_batch"):
        outcome = run(mutant(Remembers), INVARIANTS[name])
        assert outcome.status in ("passed", "failed"), outcome.reason


def test_sizes_that_follow_values_are_no_fault() -> None:
    class Routed(Attention):
        """Each row by its sign, as experts take their tokens by index."""

        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            output = super().pool(weights, value)
            chosen = (output > 0).nonzero(as_tuple=True)
            return output.index_put(chosen, output[chosen]) if len(chosen[0]) else output

    for name, told in (("fake_tensors_tell_the_shape", "DynamicOutputShape"),):
        outcome = run(mutant(Routed), INVARIANTS[name])
        assert outcome.status == "skipped"
        assert told in outcome.reason


def test_a_function_of_autograd_that_is_not_written_for_vmap_is_no_fault() -> None:
    class Copied(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, output: Tensor) -> Tensor:
            return output.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    class OwnBackward(Attention):
        def pool(self, weights: Tensor, value: Tensor) -> Tensor:
            copied: Tensor = Copied.apply(super().pool(weights, value))
            return copied

    outcome = run(mutant(OwnBackward), INVARIANTS["vmap_equals_batch"])
    assert outcome.status == "skipped"
    assert "setup_context" in outcome.reason


class EagerFlex(Attention):
    """FlexAttention that turns the compiler off in the call itself, so that export keeps a mask."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        logs = weights.clamp_min(1e-30).log()

        def add(score: Tensor, b: Tensor, h: Tensor, i: Tensor, s: Tensor) -> Tensor:
            return 0 * score + logs[b, h, i, s]

        query = value.new_zeros(*weights.shape[:-1], value.shape[-1])
        with torch.compiler.set_stance("force_eager"):
            output = flex_attention(query, value, value, score_mod=add)
        assert isinstance(output, Tensor)
        return output


def test_what_a_transformation_raises_is_told_in_one_sentence() -> None:
    wrong = run(mutant(ValuesLookedAt), INVARIANTS["fake_tensors_tell_the_shape"])
    assert wrong.reason.startswith("a call with fake tensors raised ")
    assert wrong.reason.endswith("exempt the subject with a reason if this is not to be had")


@pytest.mark.filterwarnings("ignore")  # torch's own, while it compiles
@pytest.mark.parametrize("masked", [False, True])
def test_attend_compiles_as_one_graph(masked: bool) -> None:
    torch.compiler.reset()
    subject = resolve("additive")[0]
    module, inputs = subject.build(attnbench.Case(mask="boolean" if masked else "causal_padding"))
    given: dict[str, Any] = {
        "attn_mask": inputs.attn_mask,
        "valid_lens": inputs.valid_lens,
        "is_causal": inputs.is_causal,
    }

    def call(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output: Tensor = attnbench.attend(module, query, key, value, **given)
        return output

    tensors = inputs.query, inputs.key, inputs.value
    whole = torch.compile(call, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(whole(*tensors), call(*tensors))


def test_a_subject_is_not_to_blame_where_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*called: Any, **options: Any) -> None:
        raise OSError("Read-only file system: 'cache'")

    monkeypatch.setattr(torch, "compile", broken)
    outcome = run(ATTENTION.spec, INVARIANTS["compiled_equals_eager"])
    assert outcome.status == "skipped"
    assert (
        "here (attnbench list --machine) torch.compile raised OSError: Read-only" in outcome.reason
    )


def test_a_check_can_ask_for_the_profile_it_is_run_under() -> None:
    seen = []

    def check(subject: attnbench.Subject, case: attnbench.Case) -> None:
        seen.append(current_profile().name)

    invariant = attnbench.Invariant(name="asks", check=check)
    for name in ("quick", "default"):
        with seeded():
            run_invariant(resolve("dot")[0], invariant, PROFILES[name])
    assert {*seen[:5]} == {"quick"}
    assert seen[-1] == "default"


def test_tied_parameters_are_no_fault() -> None:
    class Tied(Attention):
        def __init__(self, *sizes: int) -> None:
            super().__init__(*sizes)
            self.weight = torch.nn.Parameter(torch.ones(()))
            self.same = self.weight

        def scale(self, query: Tensor, key: Tensor, given: float | None) -> Any:
            return super().scale(query, key, given) * self.weight * self.same

    found = run(mutant(Tied, reference=None), INVARIANTS["fake_tensors_tell_the_shape"])
    assert found.status == "passed", found.reason


class Table(Attention):
    """A table that is computed, not saved: a buffer that state_dict() leaves out."""

    def __init__(self, *sizes: int, **options: Any) -> None:
        super().__init__(*sizes, **options)
        self.register_buffer("table", torch.zeros(1), persistent=False)

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        return super().pool(weights, value) + self.table.to(value.dtype)


def test_a_buffer_that_is_not_persistent_is_no_fault() -> None:
    found = run(mutant(Table), INVARIANTS["fake_tensors_tell_the_shape"])
    assert found.status == "passed", found.reason


class Kept(Attention):
    """A table that is computed at the first call and kept in a dictionary."""

    def pool(self, weights: Tensor, value: Tensor) -> Tensor:
        kept = self.__dict__.setdefault("kept", {})
        table = kept.setdefault(value.dtype, torch.zeros(1, dtype=value.dtype))
        return super().pool(weights, value) + table


def test_a_table_that_an_earlier_call_has_kept_is_no_fault() -> None:
    found = run(mutant(Kept), INVARIANTS["fake_tensors_tell_the_shape"])
    assert found.status == "passed", found.reason


def test_a_failure_of_the_debugging_backend_alone_is_no_failure(monkeypatch: Any) -> None:
    compile_ = torch.compile

    def failing(function: Any, *, backend: str) -> Any:
        if backend == "aot_eager":
            raise RuntimeError("only this backend")
        return compile_(function, backend="eager")

    monkeypatch.setattr(torch, "compile", failing)
    report = attnbench.check("scaled_dot", profile="quick", invariants=["compiled_equals_eager"])
    (outcome,) = report.outcomes
    assert outcome.status == "skipped"
    assert "'aot_eager', which is for debugging, fails" in outcome.reason


class RefusesAutocast(Attention):
    def scores(self, query: Tensor, key: Tensor, scale: float) -> Tensor:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("expected scalar type Float but found BFloat16")
        return super().scores(query, key, scale)


def test_what_raises_under_autocast_is_no_wrong_output() -> None:
    refused = run(mutant(RefusesAutocast), INVARIANTS["autocast_agrees"])
    assert refused.status == "skipped", refused.reason
    assert "a call under autocast raised RuntimeError: expected scalar type" in refused.reason
